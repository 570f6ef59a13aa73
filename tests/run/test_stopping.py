import signal
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
    with suppress(KeyboardInterrupt):  # as Python does where the garbage collector calls back
        stop.on_signal(2, None)
    with pytest.raises(KeyboardInterrupt), stop.heeded():
        pass
