"""Whether the sizes that a pipeline file gives its caches can work on a machine: judged before any work, and once more by each engine."""

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from batchpaged.config.sizes import format_bytes, parse_bytes
from batchpaged.errors import ConfigError

if TYPE_CHECKING:
    from batchpaged.config import EngineConfig

GOOD_SHARE = 0.25  # of what is free, for the size that a message proposes: model and KV cache need room too
_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1))


@dataclass(frozen=True)
class Room:
    """What there is of something that a cache takes."""

    num_bytes: int
    where: str  # `of memory that are free`, after the number


def all_memory() -> Room:
    return Room(psutil.virtual_memory().total, "of memory that this machine has")


def free_memory() -> Room:
    memory = psutil.virtual_memory()
    return Room(memory.available, f"of memory that are free, of the {format_bytes(memory.total)} of this machine")


def free_disk(folder: str | None) -> Room:
    """Raises OSError if there is no such folder."""
    folder = folder or tempfile.gettempdir()
    return Room(shutil.disk_usage(folder).free, f"that are free in {folder}")


def check_room(engine: "EngineConfig", num_workers: int) -> None:
    """Of what is given in bytes: whether this machine has it for all of its workers. Raises ConfigError with every problem."""
    sizes = {key: size for key, size in _sizes(engine).items() if isinstance(size, str)}
    _raise_all(_too_large(sizes, _rooms(engine), 1, num_workers))


def check_cache_sizes(engine: "EngineConfig", block_bytes: int, num_workers: int, device: str) -> None:
    """With the model known: whether each cache holds a block, and this machine has room for it. Raises ConfigError."""
    sizes, rooms = _sizes(engine), _rooms(engine)
    if device == "cpu":
        rooms["kv_cache"] = all_memory
    small = [problem for key, size in sizes.items() if (problem := _too_small(key, size, block_bytes)) is not None]
    _raise_all([*small, *_too_large(sizes, rooms, block_bytes, num_workers)])


def num_places(key: str, size: str | int, block_bytes: int, room: Room) -> int:
    """Blocks of an engine's `size`, which is a number of them or bytes as text. Raises ConfigError."""
    problem = _too_small(key, size, block_bytes) or _over(key, size, block_bytes, 1, room)
    if problem is not None:
        raise ConfigError(problem)
    return num_bytes_of(size, block_bytes) // block_bytes


def num_bytes_of(size: str | int, block_bytes: int) -> int:
    return size * block_bytes if isinstance(size, int) else parse_bytes(size)


def _sizes(engine: "EngineConfig") -> dict[str, str | int]:
    """By key, of the caches that have one."""
    given = {key: getattr(engine, key) for key in ("kv_cache", "host_cache", "disk_cache")}
    return {key: size for key, size in given.items() if size not in (None, "auto")}


def _rooms(engine: "EngineConfig") -> dict[str, Callable[[], Room]]:
    return {"host_cache": free_memory, "disk_cache": lambda: free_disk(engine.disk_cache_path)}


def _too_small(key: str, size: str | int, block_bytes: int) -> str | None:
    if num_bytes_of(size, block_bytes) >= block_bytes:
        return None
    least = f"{-(-block_bytes // 1024)}KiB"
    return f"engine.{key} = {size}: is less than one block, which takes {format_bytes(block_bytes)} of this model; give {least} or more"


def _too_large(
    sizes: Mapping[str, str | int], rooms: Mapping[str, Callable[[], Room]], block_bytes: int, num_workers: int
) -> Iterator[str]:
    for key in sizes.keys() & rooms.keys():
        problem = _over(key, sizes[key], block_bytes, num_workers, rooms[key]())
        if problem is not None:
            yield problem


def _over(key: str, size: str | int, block_bytes: int, num_workers: int, room: Room) -> str | None:
    wanted = num_bytes_of(size, block_bytes) * num_workers
    if wanted <= room.num_bytes:
        return None
    given = f"{size} blocks ({format_bytes(size * block_bytes)})" if isinstance(size, int) else size
    together = f" for each of {num_workers} workers, {format_bytes(wanted)} together," if num_workers > 1 else ""
    good = _round(int(room.num_bytes * GOOD_SHARE / num_workers))
    return f"engine.{key} = {given}:{together} is more than the {format_bytes(room.num_bytes)} {room.where}; {good} would work"


def _round(num_bytes: int) -> str:
    """As a pipeline file has it, in whole units, rounded down."""
    unit, size = next((unit for unit in _UNITS if num_bytes >= unit[1]), _UNITS[-1])
    return f"{num_bytes // size}{unit}"


def _raise_all(problems: Iterable[str]) -> None:
    found = sorted(problems)
    if found:
        raise ConfigError("\n".join(found))
