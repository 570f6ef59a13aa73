"""When a watchdog barks, and when it does not."""

import threading

import pytest
import stuck_step
import tiny_runs

from batchpaged import api
from batchpaged.cluster.watchdog import Watchdog
from batchpaged.errors import UnfinishedError


def watch(state, seconds=0.1):
    barked = threading.Event()
    watchdog = Watchdog(seconds, state, lambda passed: barked.set() if passed >= seconds else None)
    watchdog.start()
    return watchdog, barked


def test_it_barks_once_nothing_changes():
    _, barked = watch(lambda: 1)
    assert barked.wait(10)


def test_it_is_quiet_while_work_gets_on_or_there_is_none():
    numbers = iter(range(10**9))
    for state in (lambda: next(numbers), lambda: None):
        watchdog, barked = watch(state)
        assert not barked.wait(0.4)
        watchdog.stop()


def test_it_stops():
    numbers, is_stopped = iter(range(10**9)), threading.Event()
    watchdog, barked = watch(lambda: is_stopped.is_set() or next(numbers))
    watchdog.stop()
    is_stopped.set()  # from here on nothing changes any more
    assert not barked.wait(0.4)


@pytest.fixture
def stuck():
    tiny_runs.on_workers(stuck_step.get_stuck)
    yield
    tiny_runs.on_workers(stuck_step.get_on)


def test_a_run_that_hangs_ends_with_unit_and_row_and_goes_on_later(stuck):
    run_dir = tiny_runs.new_path("stuck")
    engine = {**tiny_runs.pipeline(run_dir)["engine"], "stall_seconds": 1}
    with pytest.raises(UnfinishedError, match=r"has not finished a step for \d s, at unit \d+, row row-\d+"):
        api.run(tiny_runs.pipeline(run_dir, engine=engine))
    tiny_runs.on_workers(stuck_step.get_on)
    try:
        assert api.run(tiny_runs.pipeline(run_dir)).exit_code == 0
    finally:
        tiny_runs.on_workers(stuck_step.get_stuck)
