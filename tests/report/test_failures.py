from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from report.synthetic import make_rows

from batchpaged.report import rows as rows_module
from batchpaged.report.failures import (
    MOST_GROUPS,
    NO_REASON,
    OTHER_REASONS,
    FailureGroup,
    count_failures,
    group_failures,
)


def failed(*errors: str | None) -> pa.Table:
    return make_rows([(f"r{i}", "failed", error, None, None, None, None) for i, error in enumerate(errors)])


def test_reasons_that_differ_in_numbers_are_one() -> None:
    groups = group_failures(
        failed("prompt has 3,000 tokens, 2,016 fit", "is null", "prompt has 2100 tokens, 2,016 fit")
    )
    assert groups == (
        FailureGroup("prompt has N tokens, 2,016 fit", 2, ("r0", "r2")),
        FailureGroup("is null", 1, ("r1",)),
    )


def test_a_reason_of_its_own_keeps_its_numbers() -> None:
    assert count_failures(failed("has 12.5 of 3", "has 12.5 of 3", "column_2 is null")) == {
        "has 12.5 of 3": 2,
        "column_2 is null": 1,
    }


def test_rows_without_a_reason_and_rows_that_did_not_fail() -> None:
    rows = make_rows([("a", "failed", None, None, 1, None, None), ("b", "ok", None, "stop", 1, 0, 1)])
    assert group_failures(rows) == (FailureGroup(NO_REASON, 1, ("a",)),)
    assert group_failures(rows.slice(1)) == ()


def test_the_rarest_of_very_many_reasons_are_counted_together() -> None:
    names = [f"{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(MOST_GROUPS + 5)]
    groups = group_failures(failed(*names, *names[:MOST_GROUPS]), num_ids=2)
    assert len(groups) == MOST_GROUPS + 1
    assert groups[-1] == FailureGroup(OTHER_REASONS, 5, ("r20", "r21"))


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["x 1", "x 2", "y", None])), max_size=40), st.integers(1, 4))
def test_first_ids_are_the_first_in_input_order(outcomes: list[tuple[bool, str | None]], num_ids: int) -> None:
    rows = make_rows([_row(i, bad, error) for i, (bad, error) in enumerate(outcomes)])
    size, rows_module.BATCH_ROWS = rows_module.BATCH_ROWS, 3
    try:
        groups = group_failures(rows, num_ids)
    finally:
        rows_module.BATCH_ROWS = size
    reasons = {"y": "y", None: NO_REASON}
    expected: dict[str, list[str]] = {}
    for i, (bad, error) in enumerate(outcomes):
        if bad:
            expected.setdefault(reasons.get(error, "x"), []).append(f"r{i}")
    assert {_plain(group.reason): group.first_ids for group in groups} == {
        reason: tuple(ids[:num_ids]) for reason, ids in expected.items()
    }
    assert {_plain(group.reason): group.num_rows for group in groups} == {k: len(ids) for k, ids in expected.items()}


def _plain(reason: str) -> str:
    return reason.split()[0] if reason.startswith("x") else reason


def _row(i: int, bad: bool, error: str | None) -> tuple[Any, ...]:
    return (f"r{i}", "failed" if bad else "ok", error if bad else None, None, 1, 0, 1)
