"""Causes of lost tokens, from the facts of units in planned order."""

import pytest

from batchpaged.run.misses import lost_tokens


def unit(session, prefilled, unique, last=0, shared=0, has_cache=True, spared=0):
    return {
        "session": session,
        "reuse": {
            "has_cache": has_cache,
            "num_prefilled_tokens": prefilled,
            "num_unique_tokens": unique,
            "num_spared_tokens": spared,
            "num_last_tokens": last,
            "num_shared_tokens": shared,
        },
    }


def lost(**causes):
    return {"evicted": 0, "cut_between_workers": 0, "last_token": 0, "cache_off": 0, **causes}


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        ([], lost()),
        ([unit("a", 100, 100), unit("a", 50, 50, shared=30)], lost()),
        ([unit("a", 100, 90), unit("a", 60, 50, shared=30)], lost(evicted=20)),
        ([unit("a", 100, 100), unit("b", 80, 50, shared=30)], lost(cut_between_workers=30)),
        # Most of what the units share was in the other engine's cache from elsewhere; and more than they share was lost.
        ([unit("a", 100, 100), unit("b", 55, 50, shared=30)], lost(cut_between_workers=5)),
        ([unit("a", 100, 100), unit("b", 90, 50, shared=30)], lost(cut_between_workers=30, evicted=10)),
        ([unit("a", 103, 100, last=3), unit("b", 84, 50, last=4, shared=30)], lost(cut_between_workers=30, last_token=7)),
        ([unit("a", 300, 100, last=5, has_cache=False)], lost(cache_off=200)),
        # The second unit's rows were computed first, and the first unit shared what they had.
        ([unit("a", 80, 100), unit("a", 70, 50)], lost()),
        ([unit("a", 80, 100), unit("a", 75, 50)], lost(evicted=5)),
        # Of the unique ones, some were there from an earlier stage; others were evicted.
        ([unit("a", 30, 100, spared=80)], lost(evicted=10)),
        # A unit that was lost with its worker computed what this one shared.
        ([unit("a", 80, 100)], lost()),
    ],
)
def test_causes(units, expected):
    assert lost_tokens(units) == expected
