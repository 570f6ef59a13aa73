"""What is proposed in place of a misspelt name, and what is not."""

import pytest

from batchpaged.spelling import nearest, nearest_file

FILES = ["rows.parquet", "part-9.parquet", "rag.yaml", "Makefile"]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("row.parquet", "rows.parquet"),
        ("rows.parquett", "rows.parquet"),
        ("part-8.parquet", "part-9.parquet"),
        ("makefile", "Makefile"),
        ("nowhere.parquet", None),  # all that is alike is the suffix
        ("data.parquet", None),
        ("rows.csv", None),
        ("", None),
    ],
)
def test_the_nearest_file(given, meant):
    assert nearest_file(given, FILES) == meant


def test_the_case_does_not_count_and_what_is_far_is_not_proposed():
    assert nearest("F_One", ["f_one", "f2"]) == "f_one"
    assert nearest("zzz", ["f_one", "f2"]) is None
