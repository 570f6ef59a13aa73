import re

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchpaged.dataset import ids
from batchpaged.dataset.source import open_source
from batchpaged.errors import InputError


def problem(config):
    with pytest.raises(InputError) as caught:
        open_source(config)
    return str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        ["a", "b", ""],
        pa.array(["a", "b", "c"], pa.large_string()),
        pa.array(["a", "b", "c"]).dictionary_encode(),
        [0, -1, 2**62],
        pa.array([0, 2**63, 2**64 - 1], pa.uint64()),
        pa.array([1, 2, 3], pa.int8()),
        [b"a", b"b", b"\xff"],
        pa.array([b"ab", b"cd", b"ef"], pa.binary(2)),
    ],
    ids=str,
)
def test_unique_ids_of_any_type_pass(write, input_config, values):
    assert open_source(input_config(write({"a.parquet": {"id": values}}), id_column="id")).num_rows == 3


@pytest.mark.parametrize("values", [["a", "b", "a"], [1, 2, 1], pa.array(["a", "b", "a"]).dictionary_encode()], ids=str)
def test_ids_that_repeat_are_counted(write, input_config, values):
    message = problem(input_config(write({"a.parquet": {"id": values}}), id_column="id"))
    assert f"column 'id' is not unique: 1 id occurs more than once, such as {values[0]}" in message


def test_what_looks_like_no_id_is_not_shown(write, input_config):
    message = problem(input_config(write({"a.parquet": {"id": ["a text", "b", "a text", "b"]}}), id_column="id"))
    assert message.endswith("2 ids occur more than once")


def test_ids_that_repeat_across_files_of_different_types(write, input_config):
    folder = write({"a.parquet": {"id": ["x", "y"]}, "b.parquet": {"id": pa.array(["y", "z"]).dictionary_encode()}})
    assert "1 id occurs more than once, such as y" in problem(input_config(folder, id_column="id"))


def test_null_ids(write, input_config):
    folder = write({"a.parquet": {"id": ["x", None, None]}, "b.parquet": {"other": [1]}})
    assert "null in 3 of 4 rows" in problem(input_config(folder, id_column="id"))


def test_a_missing_id_column_gets_a_suggestion(write, input_config):
    folder = write({"a.parquet": {"question_id": ["x"], "text": ["y"]}})
    assert "did you mean 'question_id'?" in problem(input_config(folder, id_column="questionid"))
    assert "columns: question_id, text" in problem(input_config(folder, id_column="zzz"))


@pytest.mark.parametrize("values", [[0.5], [["x"]], [{"a": 1}], [True], pa.nulls(1)], ids=str)
def test_types_that_are_no_ids(write, input_config, values):
    assert "ids are strings or integers" in problem(input_config(write({"a.parquet": {"id": values}}), id_column="id"))


def test_a_limit_only_looks_at_its_rows(write, input_config):
    folder = write({"a.parquet": {"id": ["x", "y", "x"]}})
    assert open_source(input_config(folder, id_column="id", limit=2)).num_rows == 2


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.integers(-50, 50) | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=60), st.booleans())
def test_agrees_with_a_plain_count_when_spilled(write, input_config, values, is_text):
    values = list(map(str, values)) if is_text else values
    repeated = sum(values.count(value) > 1 for value in set(values))
    folder = write({"a.parquet": {"id": values}}, row_group_size=7)
    source = open_source(input_config(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids, "_FLUSH_KEYS", 10)
        problems = ids.find_id_problems(source.schema, "id", source.iter_column)
    assert bool(problems) == bool(repeated)
    assert not repeated or re.search(rf"unique: {repeated} ids? occur", problems[0])


def test_equal_hashes_of_different_ids_are_no_repetition(write, input_config, monkeypatch):
    monkeypatch.setattr(ids.xxhash, "xxh3_64_intdigest", lambda value: 7)
    assert open_source(input_config(write({"a.parquet": {"id": ["x", "y"]}}), id_column="id")).num_rows == 2
    assert "1 id occurs more than once, such as x" in problem(input_config(write({"a.parquet": {"id": ["x", "y", "x"]}}), id_column="id"))


def test_very_many_repeated_ids_are_not_all_counted(write, input_config, monkeypatch):
    monkeypatch.setattr(ids, "_MAX_CANDIDATES", 3)
    folder = write({"a.parquet": {"id": list(range(10)) * 2}})
    assert "3 or more ids occur" in problem(input_config(folder, id_column="id"))
