import pytest

from batchpaged.report import formatting as fmt


@pytest.mark.parametrize(
    ("function", "value", "expected"),
    [
        (fmt.count, 308112, "308,112"),
        (fmt.compact, 9_999_999, "9,999,999"),
        (fmt.compact, 12_345_678, "12.3 M"),
        (fmt.compact, 123_456_789_012, "123 B"),
        (fmt.compact, 5_000_000_000_000_000, "5,000 T"),
        (fmt.rate, 0.0, "0"),
        (fmt.rate, 0.01234, "0.0123"),
        (fmt.rate, 3.2051, "3.21"),
        (fmt.rate, 9.999, "10.0"),
        (fmt.rate, 99.97, "100"),
        (fmt.rate, 1234.4, "1,234"),
        (fmt.percent, 0.8812, "88.1%"),
        (fmt.percent, 1.0, "100.0%"),
        (fmt.percent, 0.99999, "99.9%"),
        (fmt.percent, 0.00001, "<0.1%"),
        (fmt.percent, 0.0, "0.0%"),
        (fmt.seconds, 0.4512, "0.45 s"),
        (fmt.seconds, 12.34, "12.3 s"),
        (fmt.seconds, 59.97, "1 min 00 s"),
        (fmt.seconds, 192, "3 min 12 s"),
        (fmt.seconds, 7500, "2 h 05 min"),
        (fmt.seconds, 273_600, "3 d 04 h"),
        (fmt.gate_value, 0.79999, "0.79999"),
        (fmt.gate_value, 1204, "1,204"),
    ],
)
def test_numbers(function, value: float, expected: str) -> None:
    assert function(value) == expected


def test_a_failed_gate_says_that_not_all_rows_were_run() -> None:
    gate = {"gate": "f1 >= 0.5", "value": 0.3, "passed": False, "limit": {"rows": 6, "of": 1225}}
    assert fmt.gate_result(gate) == "0.3, only 6 of 1,225 rows were run (input.limit)"
    assert fmt.gate_result({**gate, "passed": True}) == "0.3"


def test_a_gate_shows_what_it_compared() -> None:
    assert fmt.gate_result({"value": 0.5}) == "0.5"
    assert fmt.gate_result({"value": 0.5, "previous": 0.625}) == "0.5, previous 0.625"
    assert fmt.gate_result({"value": None, "previous": None}) == "–, no previous"


@pytest.mark.parametrize("function", [fmt.count, fmt.compact, fmt.rate, fmt.percent, fmt.seconds, fmt.gate_value])
def test_what_is_absent_is_a_dash(function) -> None:
    assert function(None) == "–"


def test_words() -> None:
    assert [fmt.plural(n, "row") for n in (0, 1, 1204)] == ["0 rows", "1 row", "1,204 rows"]
    assert fmt.moment("2026-03-01T02:15:59Z") == "2026-03-01 02:15 UTC"
    assert fmt.moment("yesterday") == "yesterday"
