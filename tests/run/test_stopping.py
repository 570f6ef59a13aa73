import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from batchpaged.run.stopping import StopRequest


def test_a_signal_that_nobody_would_heed_is_an_interrupt():
    stop = StopRequest()
    with pytest.raises(KeyboardInterrupt):
        stop.on_signal(signal.SIGTERM, None)
    assert not stop.is_set


def test_once_the_units_are_done_it_is_one_again():
    stop = StopRequest()
    with stop.heeded():
        stop.on_signal(signal.SIGINT, None)
    assert stop.is_set
    with pytest.raises(KeyboardInterrupt):
        stop.on_signal(signal.SIGINT, None)


@contextmanager
def interrupted() -> Iterator[StopRequest]:
    """The block gets a signal whose interrupt is lost or put off at first, and has to be interrupted all the same."""
    stop = StopRequest()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), stop.listening():
        yield stop
        time.sleep(60)
    assert signal.getsignal(signal.SIGTERM) is before


def terminate(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_in_a_callback_of_the_garbage_collector_comes_once_more():
    """Dask has such a callback, and Python drops what is raised there."""
    sent = []

    def callback(phase: str, info: object) -> None:
        if not sent:
            sent.append(phase)
            terminate()

    gc.callbacks.append(callback)
    try:
        with interrupted():
            gc.collect(0)  # of a few young objects: it is over when the signal comes again
    finally:
        gc.callbacks.remove(callback)
    assert sent == ["start"]


def test_a_signal_while_an_object_is_deleted_comes_once_more():
    class Deleted:
        __del__ = terminate

    with interrupted():
        Deleted()


IMPORTING = """
def import_lock_taken(lock, kill, *signal):
    lock.acquire()
    kill(*signal)
    try:
        pass
    finally:
        lock.release()
"""


def test_an_import_is_not_interrupted_where_it_would_keep_its_lock():
    """For good: every import of another thread would wait for it, and the run for that thread."""
    found: dict[str, Callable[..., None]] = {}
    exec(compile(IMPORTING, "<frozen importlib._bootstrap>", "exec"), found)
    lock = threading.Lock()
    with interrupted():
        found["import_lock_taken"](lock, os.kill, os.getpid(), signal.SIGTERM)
    assert not lock.locked()


def test_what_else_is_dropped_is_reported_as_ever(capsys):
    class Deleted:
        def __del__(self) -> None:
            raise ValueError("of the deleted")

    with StopRequest().listening():
        Deleted()
    assert "ValueError: of the deleted" in capsys.readouterr().err
