import gc
import os
import signal
import time
from contextlib import suppress

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


def test_a_signal_that_was_lost_on_its_way_stops_the_run_before_inference():
    stop = StopRequest()
    with suppress(KeyboardInterrupt):  # as Python does where an object is deleted
        stop.on_signal(2, None)
    with pytest.raises(KeyboardInterrupt), stop.heeded():
        pass


def test_a_signal_in_a_callback_of_the_garbage_collector_comes_once_more():
    """Dask has such a callback, and Python drops what is raised there."""
    stop, sent = StopRequest(), []

    def callback(phase, info):
        if not sent:
            sent.append(phase)
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, stop.on_signal)
    gc.callbacks.append(callback)
    try:
        with pytest.raises(KeyboardInterrupt):
            gc.collect(0)  # of a few young objects: it is over when the signal comes again, and deletes nothing that would drop it
            time.sleep(60)
    finally:
        gc.callbacks.remove(callback)
        signal.signal(signal.SIGTERM, before)
    assert sent == ["start"]
