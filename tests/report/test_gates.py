from dataclasses import replace
from typing import Any

import pytest
from report.synthetic import make_facts

from batchpaged.config.gates import check_gate
from batchpaged.errors import ConfigError
from batchpaged.report.facts import EarlierStages, TierStats
from batchpaged.report.gates import FIGURES, check, find_figure, parse_gate, parse_gates
from batchpaged.report.metrics import build_report


def numeric_paths(value: dict[str, Any], prefix: str = "") -> set[str]:
    found = set()
    for key, item in value.items():
        if isinstance(item, dict):
            found |= numeric_paths(item, f"{prefix}{key}.")
        elif isinstance(item, (int, float)):
            found.add(prefix + key)
    return found


def test_the_known_figures_are_those_of_the_report() -> None:
    (engine,) = make_facts().engines
    tiers = TierStats(10, 5, 8, 3, 30, 20, 6, 4, 2, 0, 5, 1e-3, 2e-4, 3e-4, 4e-4)
    has_all = {"is_structured": True, "earlier_stages": EarlierStages(0, 0), "engines": (replace(engine, tiers=tiers),)}
    report = build_report(make_facts(**has_all))
    closed = {key: value for key, value in report.items() if key not in ("evaluation", "evaluation_details", "failures")}
    assert set(FIGURES) == numeric_paths(closed)


@pytest.mark.parametrize(
    ("text", "value", "passed"),
    [
        ("prefix_cache_hit_rate >= 0.6", 0.6, True),
        ("prefix_cache_hit_rate > 0.6", 0.6, False),
        ("  failed_rows<=1 ", 1, True),
        ("rows.failed <= 0", 1, False),
        ("rows.failed == 1", 1, True),
        ("total_rows != 4", 4, False),
        ("tokens.prefilled < 1_000", 120, True),
        ("gpu_cache_usage_perc.peak <= .9", 1.0, False),
        ("throughput.rows_per_s >= 6e-1", 0.6, True),
        ("f1 >= +0.6", 0.625, True),
        ("evaluation.exact_match > -1", 0.5, True),
        ("num_evaluated >= 4", 4, True),
        ("misses.cut_between_workers <= 0", 8, False),
        ("finish_reasons.length <= 1.", 1, True),
    ],
)
def test_gates_compare_figures(text: str, value: float, passed: bool) -> None:
    parse_gates([text], ["exact_match", "f1"])
    assert check(text, build_report(make_facts())) == {"gate": text.strip(), "value": value, "passed": passed}


@pytest.mark.parametrize(
    ("text", "before", "passed"),
    [
        ("f1 >= previous", 0.625, True),
        ("f1 > previous", 0.625, False),
        ("f1 >= previous - 0.02", 0.64, True),
        ("f1>=previous-.01", 0.64, False),
        ("f1 <= previous + 1e-2", 0.62, True),
        (" f1 >= previous * 0.9 ", 0.7, False),
        ("f1 >= previous", None, True),
    ],
)
def test_gates_compare_with_the_previous_run(text: str, before: float | None, passed: bool) -> None:
    parse_gates([text], ["f1"])
    previous = build_report(make_facts(evaluation={"f1": before}))
    entry = {"gate": text.strip(), "value": 0.625, "passed": passed, "previous": before}
    assert check(text, build_report(make_facts()), previous) == entry


def test_without_a_previous_run_any_value_passes_but_none_is_no_value() -> None:
    report = build_report(make_facts(evaluation={"f1": None}))
    assert check("failed_rows <= previous", report) == {
        "gate": "failed_rows <= previous", "value": 1, "passed": True, "previous": None
    }  # fmt: skip
    assert not check("f1 >= previous", report)["passed"]


@pytest.mark.parametrize("sign", [">=", "<=", "==", "!=", ">", "<"])
def test_a_gate_without_a_value_fails(sign: str) -> None:
    report = build_report(make_facts(evaluation={"f1": None}))
    assert check(f"f1 {sign} 0", report) == {"gate": f"f1 {sign} 0", "value": None, "passed": False}


def test_a_figure_that_is_no_number_has_no_value() -> None:
    report = build_report(make_facts(evaluation=None))
    assert all(find_figure(figure, report) is None for figure in ("run.name", "rows", "rows.total.x", "gates", "f1"))


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("prefix_hit_rate >= 0.8", "prefix_cache_hit_rate"),
        ("failed_row <= 0", "failed_rows"),
        ("throughput.row_per_s > 1", "throughput.rows_per_s"),
        ("f2 > 0.1", "f1"),
        ("evaluation.exact > 0.1", "evaluation.exact_match"),
    ],
)
def test_an_unknown_figure_is_refused_with_the_nearest(text: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"the nearest is '{nearest}'"):
        parse_gates([text], ["exact_match", "f1"])


def test_a_figure_like_no_other_gets_no_nearest() -> None:
    with pytest.raises(ConfigError, match="has; docs/pipeline-file.md lists the figures") as refused:
        parse_gates(["zzzzzz > 1"], ["f1"])
    assert "nearest" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "metrics", "stages", "words"),
    [
        ("f1 >= 0.5", [], [], "need `evaluate` in the pipeline file"),
        ("recall_at_5 >= 0.5", ["f1"], [], "To have recall_at_5, add it to evaluate.metrics"),
        ("stages.judge.rows.failed <= 0", [], [], "has no stages"),
        ("stages.juge.rows.failed <= 0", [], ["answer", "judge"], "nearest is 'stages.judge.rows.failed'. The pipeline's stages are answer, judge"),
    ],
)
def test_what_the_pipeline_lacks_for_a_gate_is_said(text: str, metrics: list, stages: list, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_gates([text], metrics, stages)


def test_a_gate_on_what_the_pipeline_does_not_ask_for_is_refused() -> None:
    lacking = {"stages.answer.structured.cut": "sampling.structured", "memory_tiers.blocks_lost": "engine.host_cache"}
    parse_gates(["structured.cut <= 0", "stages.judge.structured.cut <= 0"], (), ["answer", "judge"], lacking)
    for figure, key in lacking.items():
        with pytest.raises(ConfigError, match=f"only a run with `{key}` has"):
            parse_gates([f"{figure} <= 0"], (), ["answer", "judge"], lacking)


WRITTEN_WRONG = [
    "",
    "f1",
    "f1 >=",
    "f1 >= high",
    "f1 => 0.5",
    "0.5 <= f1",
    "f1 >= 80%",
    "f1 >= 0.5 extra",
    "f1 >= 1e",
    "f1 > --1",
    "f1 >= previous -",
    "f1 >= previous - -0.1",
    "f1 >= previous / 2",
    "f1 >= 0.9 * previous",
    "f1 >= previous0.1",
    "f1 >= Previous",
]


@pytest.mark.parametrize("text", WRITTEN_WRONG)
def test_what_is_not_a_condition_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a condition; write `figure operator number`"):
        parse_gate(text)


@pytest.mark.parametrize("text", [*WRITTEN_WRONG, "f1 >= 1_", "a.b-c < .5e+3", "f1 == 1.", "é > 1", "f1 > ١", "a > previous*1_0.5", "f1 > previous"])
def test_the_pipeline_file_accepts_the_same_conditions(text: str) -> None:
    def accepts(read: Any) -> bool:
        try:
            read(text)
        except (ConfigError, ValueError):
            return False
        return True

    assert accepts(parse_gate) == accepts(check_gate)
