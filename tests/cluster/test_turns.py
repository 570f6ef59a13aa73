"""Threads that come in any order have their turns in the order that was meant."""

import random
import threading
import time

import pytest

from batchpaged.cluster import turns
from batchpaged.cluster.turns import Turns


def in_threads(function, arguments):
    threads = [threading.Thread(target=function, args=args) for args in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def test_units_have_their_turns_one_at_a_time_in_the_order_in_which_they_were_sent():
    order, inside, waiting = [], [], Turns()

    def work(unit, after):
        with waiting.turn("a", unit, after):
            inside.append(unit)
            assert inside == [unit]
            time.sleep(0.001)
            order.append(unit)
            inside.clear()

    sent = [(3, None), (4, 3), (5, 4), (9, 5), (6, 9)]
    in_threads(work, random.Random(0).sample(sent, len(sent)))
    assert order == [3, 4, 5, 9, 6]


def test_a_unit_does_not_wait_forever_for_one_that_went_elsewhere(monkeypatch):
    monkeypatch.setattr(turns, "PATIENCE_SECONDS", 0.01)
    waiting = Turns()
    with waiting.turn("a", 1, after=0):
        pass
    with waiting.turn("b", 2, after=1):  # 1 had its turn in another sitting
        pass
    assert waiting._units == {2}


def test_a_unit_that_fails_has_had_its_turn():
    waiting, started = Turns(), threading.Event()

    def work(unit, after):
        with waiting.turn("a", unit, after):
            started.set()

    with pytest.raises(ValueError), waiting.turn("a", 0, None):
        raise ValueError
    in_threads(work, [(1, 0)])
    assert started.is_set()
