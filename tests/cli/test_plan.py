"""plan: what it passes on, and simulations that cannot be."""

from pathlib import Path

import pytest
from cli.fake_api import invoke


def test_plan_passes_everything_on_and_prints(api, lines):
    api.answers["plan"] = "a plan"
    assert invoke("plan", "rag.yaml", "--set", "a=1", "--limit", 7).stdout == "lines of ('a plan',)\n"
    [(_, args, kwargs)] = api.calls
    assert args == (Path("rag.yaml"),) and kwargs.pop("reporter") is not None
    assert kwargs == dict(overrides=("a=1",), limit=7, simulate=None)


def test_plan_is_told_what_to_simulate(api, lines):
    api.answers["plan"] = "a plan"
    invoke("plan", "rag.yaml", "--simulate", "1,8, 64", "--simulate-rows", 500, "--simulate-length", 12.5)
    invoke("plan", "rag.yaml", "--simulate", "4")
    first, second = (kwargs["simulate"] for _, _, kwargs in api.calls)
    assert (first.num_workers, first.num_rows, first.mean_completion) == ((1, 8, 64), 500, 12.5)
    assert (second.num_workers, second.num_rows, second.mean_completion) == ((4,), 100_000, None)


@pytest.mark.parametrize(
    "arguments", [["--simulate", "1,x"], ["--simulate", "0"], ["--simulate", "1,,2"], ["--simulate-rows", "5"]]
)
def test_what_cannot_be_simulated_is_a_wrong_use(api, arguments):
    outcome = invoke("plan", "rag.yaml", *arguments)
    assert outcome.exit_code == 2 and "--simulate" in outcome.stderr and api.calls == []
