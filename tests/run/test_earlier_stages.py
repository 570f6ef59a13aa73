"""What a stage found of the stages before it, and what an interruption took from it."""

import pytest

from batchpaged.report.facts import EarlierStages
from batchpaged.run.earlier_stages import earlier_stages


def unit(start, prefilled=0, spared=0, has_cache=True):
    reuse = {"has_cache": has_cache, "num_prefilled_tokens": prefilled, "num_spared_tokens": spared}
    return {"start": start, "reuse": reuse}


@pytest.mark.parametrize(
    ("units", "before", "expected"),
    [
        ([unit("a", 9)], [], (0, 0)),  # the first stage
        ([unit("a", 5, 40), unit("a", 5, 2)], [unit("a", 50), unit("a", 60)], (42, 0)),
        ([unit("b", 50, 0)], [unit("a", 50), unit("a", 60)], (0, 110)),  # resumed between them
        ([unit("b", 20, 30)], [unit("a", 50), unit("b", 60)], (30, 50)),  # resumed inside the stage before
        ([unit("a", 5, 40), unit("b", 50)], [unit("a", 50), unit("a", 60)], (40, 110)),  # resumed inside itself
        ([unit("b", 50, has_cache=False)], [unit("a", 50, has_cache=False)], (0, 0)),
    ],
)
def test_by_hand(units, before, expected):
    assert earlier_stages(units, before) == EarlierStages(*expected)


def test_of_units_that_do_not_say_it_nothing_is_told():
    old = {"session": "x", "reuse": {"has_cache": True, "num_prefilled_tokens": 10}}
    assert earlier_stages([old], [old]) == EarlierStages(0, 0)
