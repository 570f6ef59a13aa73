"""When a watchdog barks, and when it does not."""

import threading

from batchpaged.cluster.watchdog import Watchdog


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
    watchdog, barked = watch(lambda: 1, seconds=0.3)
    watchdog.stop()
    assert not barked.wait(0.6)
