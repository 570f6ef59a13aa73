"""prompt.reorder: each row keeps its documents, the order is recorded, and rows with the same documents share them."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpaged.config import parse_pipeline
from batchpaged.dataset.prompts import validate_prompt_columns
from batchpaged.dataset.reorder import Reorder, count_documents, hash_document, merge_counts
from batchpaged.errors import ConfigError, InputError

DOCUMENTS = [f"document {i}" for i in range(8)]
STRUCT = pa.struct([("title", pa.string()), ("text", pa.string()), ("page", pa.int64())])
rows_of_documents = st.lists(st.one_of(st.none(), st.lists(st.sampled_from([*DOCUMENTS, None]), max_size=6)), max_size=30)


def column(rows, kind=None, num_chunks=2):
    kind = kind or pa.list_(pa.string())
    size = -(-len(rows) // num_chunks) or 1
    return pa.chunked_array([pa.array(rows[i : i + size], kind) for i in range(0, len(rows), size)], kind)


def reorder_of(docs):
    return Reorder("contexts", count_documents(docs, "contexts").shared())


def applied(docs):
    return reorder_of(docs).apply(pa.table({"contexts": docs}))["contexts"].to_pylist()


def num_unique(rows):
    """Nodes of the trie of documents: what a cache computes, in documents."""
    return len({tuple(map(str, row[: i + 1])) for row in rows if row for i in range(len(row))})


# --- what a row keeps ---


@given(rows_of_documents)
def test_each_row_keeps_its_documents_and_the_recorded_order_gives_the_new_one(rows):
    docs = column(rows)
    reordered, orders = applied(docs), reorder_of(docs).orders(docs)
    for before, after, order in zip(rows, reordered, orders, strict=True):
        if before is None:
            assert after is None and order == []
        else:
            assert sorted(order) == list(range(len(before)))
            assert [before[i] for i in order] == after
            assert Counter(before) == Counter(after)


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.list_(pa.string(), 2)])
def test_every_layout_of_lists(kind):
    docs = column([["b", "a"], ["a", "b"], None, ["c", "a"]], kind)
    first, second, missing, third = applied(docs)
    assert first == second and sorted(first) == ["a", "b"] and missing is None and third == ["a", "c"]


def test_dictionaries_and_slices():
    docs = column([["x", "y"], ["b", "a"], ["a", "b"], ["a"]], pa.list_(pa.dictionary(pa.int8(), pa.string())), 1)
    sliced = docs.slice(1)
    assert applied(sliced) == [["a", "b"], ["a", "b"], ["a"]]


def test_documents_are_compared_whole():
    a, b, other_page = ({"title": "t", "text": text, "page": page} for text, page in (("x", 1), ("y", 1), ("x", 2)))
    docs = column([[b, a], [a, b], [other_page], [a, other_page]], pa.list_(STRUCT))
    first, second, _, fourth = applied(docs)
    assert first == second and first[0] == a and fourth == [a, other_page]
    assert len({hash_document(document) for document in (a, b, other_page, None, str(a))}) == 5


def test_a_list_that_cannot_be_read_is_left_to_fail():
    broken = pa.Array.from_buffers(pa.string(), 3, pa.array([b"\xff", b"a", b"b"], pa.binary()).buffers())
    docs = pa.chunked_array([pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), broken)])
    reorder = reorder_of(docs)
    assert reorder.orders(docs) == [[], [0]]
    table = reorder.apply(pa.table({"contexts": docs}))
    assert table["contexts"].chunk(0).values.cast(pa.binary()).to_pylist() == [b"\xff", b"a", b"b"]


# --- what rows share ---


@given(rows_of_documents)
def test_each_set_of_documents_is_computed_at_most_once(rows):
    sets = {tuple(sorted(map(str, row))) for row in rows if row}
    assert num_unique(applied(column(rows))) <= sum(map(len, sets))


@given(st.lists(st.tuples(st.integers(0, 3), st.randoms(use_true_random=False)), max_size=30))
def test_never_more_than_without_where_sets_are_equal_or_have_nothing_in_common(choices):
    rows = []
    for group, random in choices:
        row = [f"document {group}-{i}" for i in range(4)]
        random.shuffle(row)
        rows.append(row)
    after = applied(column(rows))
    assert num_unique(after) == 4 * len({row[0][:10] for row in rows}) <= num_unique(rows)
    assert len(set(map(tuple, after))) == len({row[0][:10] for row in rows})


def test_frequent_documents_come_first_and_share_more_on_random_sets():
    generator = np.random.default_rng(0)
    weights = 1 / np.arange(1, 101)
    draw = lambda: generator.choice(100, 5, replace=False, p=weights / weights.sum())
    rows = [[f"document {i}" for i in draw()] for _ in range(2000)]
    after = applied(column(rows))
    counts = Counter(document for row in rows for document in row)
    assert all(counts[a] >= counts[b] for row in after for a, b in zip(row, row[1:], strict=False))
    by_hash = [sorted(row, key=hash_document) for row in rows]
    assert num_unique(after) < 0.85 * num_unique(by_hash) and num_unique(after) < 0.65 * num_unique(rows)


# --- counting ---


@given(rows_of_documents, st.integers(1, 5), st.randoms(use_true_random=False))
def test_counts_do_not_depend_on_parts_or_their_order(rows, size, random):
    parts = [count_documents(column(rows[i : i + size]), "contexts") for i in range(0, len(rows), size)]
    random.shuffle(parts)
    merged = merge_counts(parts)
    expected = Counter(hash_document(document) for row in rows if row for document in set(row))
    assert dict(zip(merged.hashes.tolist(), merged.num_rows.tolist(), strict=True)) == expected
    shared = merged.shared()
    assert shared.num_rows.tolist() == [n for n in merged.num_rows if n > 1]
    assert shared.look_up(merged.hashes).tolist() == merged.num_rows.tolist()


# --- refusals ---


def check(prompt_config, reorder="contexts", user="{{ contexts | join }}", **columns):
    types = {"contexts": pa.list_(pa.string()), "question": pa.string(), **columns}
    validate_prompt_columns(prompt_config(user=user, reorder=reorder), pa.schema(list(types.items())))


def test_a_column_that_can_be_reordered(prompt_config):
    check(prompt_config)
    check(prompt_config, contexts=pa.large_list(STRUCT))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reorder": "context"}, "prompt.reorder uses 'context', which is no column of the input; did you mean 'contexts'"),
        ({"reorder": "question", "user": "{{ question }}"}, "column 'question' is string, must be a list of documents"),
        ({"user": "{{ question }}"}, "neither prompt.user nor prompt.system uses 'contexts'"),
        ({"contexts_order": pa.int8()}, "adds a column 'contexts_order' to the output, which the input has already"),
    ],
)
def test_columns_that_cannot(prompt_config, change, words):
    with pytest.raises(InputError, match=words):
        check(prompt_config, **change)


def test_it_goes_with_templates_only():
    sections = {"input": {"path": "x.parquet"}, "model": {"id": "m"}, "output": {"path": "runs/x"}}
    with pytest.raises(ConfigError, match="prompt.reorder = 'contexts': goes with prompt.user only"):
        parse_pipeline({**sections, "prompt": {"text_column": "text", "reorder": "contexts"}})
