"""A run directory on an object store: a working copy on this machine, and files that go to the store as they are committed.

A run of several stages has a run directory for each: sent and fetched in the same way, under the lock of the whole.

The store is the truth about which run it is and how it is planned; a unit counts wherever it is. What is in the working copy
alone (units of a client that was killed before they were sent) is sent when the run goes on here.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import xxhash

from batchpaged.errors import RunDirectoryError
from batchpaged.models.cache import cache_dir
from batchpaged.run.directory import OWN_NAMES, RunDirectory
from batchpaged.run.store import Store, StoreError, is_on_store, open_store
from batchpaged.run.store_lock import LOCK_FILE, StoreLock, store_lock

_NUM_THREADS = 16  # small files: sending them is all waiting
# What is kept, in an order in which every beginning of it is a run that can go on. Documents and prompts are not: they are
# made again where the plan is not there yet.
_ORDER = ("run.json", "documents.parquet", "plan/", "plan.json", "units/", "sittings/", "previous.json")
STAGES = "stages"  # a run directory for each
# What comes of it. The report is last: without it on the store, results there are somebody's who was cut off.
_RESULTS = ("output/", "output/_SUCCESS", "scores.parquet", "report.html", "metrics.prom", "report.json")


class Keeper(Protocol):
    """Told of files that were committed to the run directory."""

    def keep(self, *names: str) -> None:
        """Returns at once. Raises UnfinishedError if an earlier file could not be kept."""

    def keep_all(self) -> None:
        """All that a run needs to go on; returns when it is kept."""

    def keep_results(self, is_new_output: bool) -> None:
        """Output and reports, the last file last."""

    def of_stage(self, name: str) -> "Keeper":
        """Of the stage's own run directory."""


class NothingToKeep:
    """A run directory on a file system is where it is."""

    def keep(self, *names: str) -> None:
        pass

    def keep_all(self) -> None:
        pass

    def keep_results(self, is_new_output: bool) -> None:
        pass

    def of_stage(self, name: str) -> "NothingToKeep":
        return self


@contextmanager
def opening(run_dir: Path | str, note: Callable[[str], None]) -> Iterator[tuple[RunDirectory, Keeper]]:
    """The run directory, and who keeps what is committed to it. On a store the run is held for the whole block.

    Raises RunDirectoryError if the store cannot be used, or if another client has the run.
    """
    if not is_on_store(run_dir):
        yield RunDirectory(run_dir), NothingToKeep()
        return
    store = open_store(str(run_dir))
    directory = RunDirectory(working_copy(store.name))
    with _refusing(), directory.lock():
        check_no_strangers(store.name, store.files())
    with _holding(store, note) as lock:
        with _refusing(), directory.lock():
            sizes = _fetch(store, directory)
            for stage in store.child(STAGES).folders():
                _fetch(_of_stage(store, stage), directory.of_stage(stage))
        with _sending() as pool:
            yield directory, _StoreKeeper(store, directory, lock, pool, sizes)


@contextmanager
def _sending() -> Iterator[ThreadPoolExecutor]:
    """What is under way is waited for, unless the store is gone."""
    pool = ThreadPoolExecutor(_NUM_THREADS)
    try:
        yield pool
    except StoreError:
        pool.shutdown(cancel_futures=True)
        raise
    finally:
        pool.shutdown()


@contextmanager
def _holding(store: Store, note: Callable[[str], None]) -> Iterator[StoreLock]:
    context = store_lock(store, note)
    with _refusing():
        lock = context.__enter__()
    try:
        yield lock
    finally:
        context.__exit__(None, None, None)


def working_copy(name: str) -> Path:
    """Of a run directory with this URL; it survives the run, and may be deleted when no run is going on."""
    return cache_dir() / "runs" / f"{Path(name).name}-{xxhash.xxh3_64_hexdigest(name.encode())[:8]}"


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise RunDirectoryError(str(error)) from error


def check_no_strangers(name: str, names: Iterable[str]) -> None:
    """Raises RunDirectoryError if other files are there, and no run."""
    tops = {name.split("/")[0] for name in names} - {LOCK_FILE}
    if tops and "run.json" not in tops:
        shown = ", ".join(sorted(tops)[:3])
        raise RunDirectoryError(f"{name} holds other files ({shown}) and no run; give an empty folder")


def _fetch(store: Store, directory: RunDirectory) -> dict[str, int]:
    """Make the working copy what the store has, and at most more units, and results that the store does not have yet.
    -> names and sizes of what the store has
    """
    sizes = _sizes(store)
    if any(_differs(store, directory, name) for name in ("run.json", "plan.json")):
        directory.clear()
    has_results = "report.json" in sizes and not any(directory.units.glob("retry-*"))
    if has_results and not (directory.report.exists() and not _differs(store, directory, "report.json")):
        directory.remove_results()
    kept = [name for name in sizes if has_results or _place(name) < len(_ORDER)]
    names = sorted((name for name in kept if _is_wanted(directory, name, sizes[name])), key=_place)
    for group in _groups(names):
        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            list(pool.map(lambda name: store.get(name, directory.path / name), group))
    return sizes


def _sizes(store: Store) -> dict[str, int]:
    """Of the run's own files on the store; each stage has its own."""
    own = OWN_NAMES - {LOCK_FILE, STAGES}
    return {name: info.size for name, info in store.files().items() if name.split("/")[0] in own}


def _of_stage(store: Store, name: str) -> Store:
    return store.child(f"{STAGES}/{name}")


def _differs(store: Store, directory: RunDirectory, name: str) -> bool:
    """A file that is on both sides has to be the same; a run that the store does not have is not there."""
    path = directory.path / name
    if not path.exists():
        return False
    content = store.read(name)
    return content != path.read_bytes() if content is not None else name == "run.json"


def _is_wanted(directory: RunDirectory, name: str, size: int) -> bool:
    path = directory.path / name
    is_set_aside = path.with_name(path.name.replace("unit-", "retry-")).exists() and path.parent == directory.units
    return not is_set_aside and not (path.exists() and path.stat().st_size == size)


def _place(name: str) -> int:
    """In _ORDER, then _RESULTS; files of one folder have the same."""
    order = [*_ORDER, *_RESULTS]
    return order.index(name) if name in order else order.index(f"{name.split('/')[0]}/")


def _groups(names: list[str]) -> Iterator[list[str]]:
    """Those of one place together: a group is whole before the next one begins."""
    places = sorted({_place(name) for name in names})
    yield from ([name for name in names if _place(name) == place] for place in places)


class _StoreKeeper:
    """Sends files to the store. For the client's thread."""

    def __init__(
        self, store: Store, directory: RunDirectory, lock: StoreLock, pool: ThreadPoolExecutor, sizes: dict[str, int]
    ) -> None:
        self._store, self._directory, self._lock, self._pool = store, directory, lock, pool
        self._sizes = sizes  # of what the store has
        self._sending: list[Future] = []

    def keep(self, *names: str) -> None:
        self._lock.check()
        self._settle(only_done=True)
        self._sending += [self._pool.submit(self._send, name) for name in names]

    def keep_all(self) -> None:
        self._settle()  # what could not be kept comes before what cannot be read
        if self._store.read("run.json") not in (None, (self._directory.path / "run.json").read_bytes()):  # --fresh
            self._delete([name for name in self._sizes])
            self._store.delete_tree(STAGES)
        gone = [name for name in self._sizes if name.startswith("units/") and not (self._directory.path / name).exists()]
        self._delete([*(["report.json"] if gone else []), *gone])  # set aside, to be computed again
        self._send_in_order([name for name in self._names(_ORDER) if self._is_new(name)])

    def keep_results(self, is_new_output: bool) -> None:
        self.keep_all()
        is_new_output |= "report.json" not in self._sizes  # an earlier sitting could not send all of it
        names = self._names(_RESULTS)
        if is_new_output:
            stale = [name for name in self._sizes if name.startswith("output/") and name not in names]
            self._delete(["report.json", "output/_SUCCESS", *stale])  # readers wait for _SUCCESS
        self._send_in_order([name for name in names if is_new_output or not name.startswith("output/")])

    def of_stage(self, name: str) -> "_StoreKeeper":
        """The run's lock is that of all stages."""
        store = _of_stage(self._store, name)
        return _StoreKeeper(store, self._directory.of_stage(name), self._lock, self._pool, _sizes(store))

    def _names(self, order: tuple[str, ...]) -> list[str]:
        """Committed files of the working copy."""
        found = []
        for entry in order:
            path = self._directory.path / entry
            files = sorted(path.glob("[!.]*")) if entry.endswith("/") else [path] if path.exists() else []
            found += [str(file.relative_to(self._directory.path)) for file in files if file.name != "_SUCCESS" or file == path]
        return found

    def _is_new(self, name: str) -> bool:
        return self._sizes.get(name) != (self._directory.path / name).stat().st_size

    def _send_in_order(self, names: list[str]) -> None:
        self._settle()
        for group in _groups(names):
            self.keep(*group)
            self._settle()

    def _send(self, name: str) -> None:
        self._sizes[name] = self._store.put(name, self._directory.path / name)

    def _delete(self, names: Iterable[str]) -> None:
        self._settle()
        for name in sorted(names, key=lambda name: name != "run.json"):  # first: without it there is no run
            if name in self._sizes:
                self._store.delete(name)
                del self._sizes[name]

    def _settle(self, only_done: bool = False) -> None:
        """Raises what went wrong first."""
        ready, waiting = [], []
        for future in self._sending:
            (ready if future.done() or not only_done else waiting).append(future)
        self._sending = waiting
        for future in ready:
            future.result()
