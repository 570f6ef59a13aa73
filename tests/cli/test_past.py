"""compare, history and clean: what they pass on, print, and exit with."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from cli.fake_api import invoke


@pytest.mark.parametrize(
    ("options", "facts", "exit_code"),
    [
        ([], dict(has_changes=True, is_worse=True), 0),
        (["--fail-on-change"], dict(has_changes=True, is_worse=False), 1),
        (["--fail-on-change"], dict(has_changes=False, is_worse=True), 0),
        (["--fail-on-worse"], dict(has_changes=True, is_worse=False), 0),
        (["--fail-on-worse"], dict(has_changes=False, is_worse=True), 1),
        (["--fail-on-worse"], dict(is_judged=False), 2),
        (["--fail-on-change"], dict(result={"rows": None}), 2),
    ],
)
def test_compare_fails_only_on_request(api, lines, options, facts, exit_code):
    mean, change = {"mean": 0.5, "low": None}, {"mean": -0.25, "low": -0.5, "high": -0.125}
    metrics = {"f1": {"a": mean, "b": mean, "change": change, "verdict": "worse"}} if facts.get("is_worse") else {}
    api.answers["compare"] = SimpleNamespace(**{"result": {"rows": {}, "metrics": metrics}, "is_judged": True, **facts})
    outcome = invoke("compare", "a", "b", *options)
    assert outcome.exit_code == exit_code
    is_named = "worse: f1 0.5000 -> 0.5000, row by row -0.2500 [-0.5000, -0.1250]" in outcome.stderr
    assert is_named == (options == ["--fail-on-worse"] and exit_code == 1)
    wanted = dict(id_column=None, references=None, num_ids=10, with_text=False)
    assert api.calls == [("compare", ("a", "b"), wanted)]


def test_history_passes_everything_on(api, lines):
    api.answers["history"] = []
    outcome = invoke("history", "runs", "--name", "rag", "--last", 3, "--html", "page.html", "--csv")
    assert api.calls == [("history", ("runs",), dict(name="rag", last=3, html=Path("page.html")))]
    assert outcome.stdout == "lines of ([], 'csv', 200)\n"


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        (["--keep", "3"], dict(keep=3, min_age=0.0, keep_results=False, delete=False)),
        (["--older-than", "2d", "--yes"], dict(keep=0, min_age=172_800.0, keep_results=False, delete=True)),
        (["--older-than", "1w", "--keep-results"], dict(keep=0, min_age=604_800.0, keep_results=True, delete=False)),
    ],
)
def test_clean_is_a_dry_run_unless_told_otherwise(api, lines, options, rules):
    api.answers["clean"] = SimpleNamespace(errors=[])
    assert invoke("clean", "runs", *options).exit_code == 0
    assert api.calls == [("clean", ("runs",), rules)]


def test_what_could_not_be_deleted_is_an_exit_code(api, lines):
    api.answers["clean"] = SimpleNamespace(errors=["runs/a: not deleted"])
    assert invoke("clean", "runs", "--keep", 1, "--yes").exit_code == 3


@pytest.mark.parametrize("options", [[], ["--yes"], ["--older-than", "5"], ["--older-than", "d"], ["--keep", "0"]])
def test_clean_has_to_be_told_what_may_go(api, options):
    assert invoke("clean", "runs", *options).exit_code == 2 and api.calls == []
