"""The right to write to a run directory on an object store, which has no locks: a file that its owner renews.

A client writes `owner.json` with a token of its own, waits until writes that were under way have arrived, and reads it back:
of several that came at once the last writer has it, and the others see that. The owner renews the file; one that no longer
changes belongs to nobody. Clocks of different machines are never compared.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import Any

import psutil

from batchpaged.errors import RunDirectoryError, UnfinishedError
from batchpaged.run.store import Store, StoreError

LOCK_FILE = "owner.json"
SETTLE_SECONDS = 2.0  # longer than a write of this file takes
RENEW_SECONDS = 20.0
STALE_SECONDS = 70.0  # without a renewal: three have failed

_held: set[str] = set()  # tokens, by this process


class StoreLock:
    """Held; renewed by a thread of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._owner = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "token": uuid.uuid4().hex,
        }
        self._num_renewals = 0
        self._is_lost = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="batchpaged-store-lock", daemon=True)

    def check(self) -> None:
        """Raises UnfinishedError if another client has taken the run."""
        if self._is_lost:
            raise UnfinishedError(f"{self._store.name} was taken over by another run of batchpaged; this one has ended")

    def acquire(self) -> None:
        """Raises RunDirectoryError if another client was quicker."""
        _held.add(self._owner["token"])
        self._write()
        time.sleep(SETTLE_SECONDS)
        if not self._is_mine():
            _held.discard(self._owner["token"])
            raise RunDirectoryError(_in_use(self._store, read_owner(self._store) or {}))
        self._thread.start()

    def release(self) -> None:
        self._end.set()
        self._thread.join()
        _held.discard(self._owner["token"])
        with suppress(StoreError):  # a store that is gone; the next client finds that nobody renews it
            if self._is_mine():
                self._store.delete(LOCK_FILE)

    def _write(self) -> None:
        self._store.write(LOCK_FILE, json.dumps({**self._owner, "num_renewals": self._num_renewals}).encode())

    def _is_mine(self) -> bool:
        return (read_owner(self._store) or {}).get("token") == self._owner["token"]

    def _renew(self) -> None:
        while not self._end.wait(RENEW_SECONDS):
            self._num_renewals += 1
            with suppress(StoreError):  # uploads will say it
                if not self._is_mine():
                    self._is_lost = True
                    return
                self._write()


@contextmanager
def store_lock(store: Store, note: Callable[[str], None]) -> Iterator[StoreLock]:
    """Raises RunDirectoryError if a living client has it; waits where it cannot be told whether one lives."""
    _wait_for_sign_of_life(store, note)
    lock = StoreLock(store)
    lock.acquire()
    try:
        yield lock
    finally:
        lock.release()


def read_owner(store: Store) -> dict[str, Any] | None:
    """None if nobody has it."""
    content = store.read(LOCK_FILE)
    if content is None:
        return None
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError):
        return {}


def _wait_for_sign_of_life(store: Store, note: Callable[[str], None]) -> None:
    owner = read_owner(store)
    if owner is None or _is_dead_here(owner):
        return
    note(f"{_describe(owner)} has {store.name}; waiting up to {STALE_SECONDS:.0f} s for a sign that it is alive")
    end = time.monotonic() + STALE_SECONDS
    while time.monotonic() < end:
        time.sleep(min(1.0, STALE_SECONDS))
        now = read_owner(store)
        if now is None:
            return
        if now != owner:
            raise RunDirectoryError(_in_use(store, now))
    note(f"{_describe(owner)} gave none; its lock is taken over")


def _is_dead_here(owner: dict[str, Any]) -> bool:
    """Certainly: a process of this host that is no more, or this one, which could not release it."""
    if owner.get("host") != socket.gethostname():
        return False
    if owner.get("pid") == os.getpid():
        return owner.get("token") not in _held
    return not psutil.pid_exists(owner.get("pid") or 0)


def _describe(owner: dict[str, Any]) -> str:
    return f"process {owner.get('pid')} on {owner.get('host')}, since {owner.get('started_at')},"


def _in_use(store: Store, owner: dict[str, Any]) -> str:
    return f"{store.name} is in use by {_describe(owner)} wait for it, or give another --run-dir"
