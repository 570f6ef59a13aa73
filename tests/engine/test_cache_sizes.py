"""Sizes of caches that cannot work: refused with the key, the value, the limit, and a size that works."""

from types import SimpleNamespace

import pytest

from batchpaged.config import EngineConfig
from batchpaged.engine import cache_sizes
from batchpaged.engine.cache_sizes import Room, check_cache_sizes, check_room, num_places
from batchpaged.errors import ConfigError

BLOCK = 12 << 10  # bytes
GIB = 1 << 30


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    memory = SimpleNamespace(available=22 * GIB, total=24 * GIB)
    monkeypatch.setattr(cache_sizes.psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(cache_sizes.shutil, "disk_usage", lambda folder: SimpleNamespace(free=100 * GIB))
    monkeypatch.setattr(cache_sizes.tempfile, "gettempdir", lambda: "/tmp")


def problems(num_workers=1, device="cpu", **engine):
    try:
        check_cache_sizes(EngineConfig(**engine), BLOCK, num_workers, device)
    except ConfigError as error:
        return str(error).splitlines()
    return []


TOO_LARGE = [
    (
        {"host_cache": "900TiB"},
        "engine.host_cache = 900TiB: is more than the 22.0 GiB of memory that are free, of the 24.0 GiB of this machine; "
        "5GiB would work",
    ),
    (
        {"host_cache": "1GiB", "disk_cache": "2TB"},
        "engine.disk_cache = 2TB: is more than the 100.0 GiB that are free in /tmp; 25GiB would work",
    ),
]


@pytest.mark.parametrize(("engine", "message"), TOO_LARGE)
def test_a_cache_that_the_machine_has_no_room_for_is_refused_with_and_without_the_model(engine, message):
    assert problems(**engine) == [message]
    with pytest.raises(ConfigError) as refused:
        check_room(EngineConfig(**engine), 1)
    assert str(refused.value) == message


def test_what_all_workers_take_together_counts():
    assert problems(num_workers=2, host_cache="10GiB") == []
    assert "for each of 3 workers, 30.0 GiB together, is more" in problems(num_workers=3, host_cache="10GiB")[0]


def test_a_cache_of_less_than_one_block_is_refused_with_the_least_that_works():
    found = problems(kv_cache="1KiB", host_cache="1KiB", disk_cache="11KiB")
    assert [line.partition(":")[0] for line in found] == [
        "engine.disk_cache = 11KiB",
        "engine.host_cache = 1KiB",
        "engine.kv_cache = 1KiB",
    ]
    assert "is less than one block, which takes 12.0 KiB of this model; give 12KiB or more" in found[0]
    assert problems(kv_cache="12KiB", host_cache="12KiB", disk_cache="12KiB") == []


def test_a_number_of_blocks_is_judged_once_the_model_is_known():
    engine = EngineConfig(host_cache=3_000_000)
    check_room(engine, 1)
    assert "= 3000000 blocks (34.3 GiB): is more than" in problems(host_cache=3_000_000)[0]


def test_the_kv_cache_of_a_cpu_has_to_fit_into_the_machine():
    assert "is more than the 24.0 GiB of memory that this machine has" in problems(kv_cache="25GiB")[0]
    assert problems(kv_cache="23GiB") == []
    assert problems(kv_cache="25GiB", device="cuda:0") == []  # memory of another kind, which the engine measures


@pytest.mark.parametrize("num_bytes", [1, 700, 5 << 20, 3 << 41])
def test_the_proposed_size_works(num_bytes):
    room = Room(num_bytes, "there")
    with pytest.raises(ConfigError) as refused:
        num_places("host_cache", "900TiB", 1, room)
    proposed = str(refused.value).partition("; ")[2].removesuffix(" would work")
    assert num_bytes < 4 or 0 < num_places("host_cache", proposed, 1, room) <= num_bytes
