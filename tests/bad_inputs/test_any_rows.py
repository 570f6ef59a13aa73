"""Whatever stands in a row: a prompt that fits, or a reason. Never an exception, and never a control token of the row's."""

import functools

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import tiny_tokenizer

from batchpaged.config import PromptConfig
from batchpaged.dataset.prompts import PROMPT_SCHEMA, PromptBuilder

MAX_MODEL_LEN, MAX_TOKENS = 120, 8
VOCAB = 259
PROMPTS = {
    "templates": {
        "system": "Be brief. {{ n or '' }}",
        "user": "{% for c in contexts or [] %}{{ c }}{% endfor %}{{ text }}{{ (fields or {}).a }}{{ 1 // n }}",
    },
    "messages": {"messages_column": "messages"},
    "messages-as-json": {"messages_column": "text"},
    "text": {"text_column": "text"},
    "token-ids": {"token_ids_column": "ids"},
}
letters = st.sampled_from(["<end>", "<bos>", "{{", "}}", "\x00", "é", " ", "\n", "\ue0f0", "<", "end>", '"', "[", "user"])
texts = st.lists(letters | st.text(max_size=3), max_size=20).map("".join)
raw_texts = texts.map(str.encode) | st.binary(max_size=20)  # what a string column can hold in truth
messages = st.lists(
    st.fixed_dictionaries({"role": st.none() | st.sampled_from(["user", "system", ""]) | texts, "content": st.none() | texts}),
    max_size=3,
)
numbers = st.none() | st.sampled_from([0.0, float("nan"), float("inf")]) | st.floats(-5, 5)
rows = st.fixed_dictionaries(
    {
        "text": st.none() | raw_texts,
        "contexts": st.none() | st.lists(st.none() | texts, max_size=4),
        "n": numbers,
        "fields": st.none() | st.fixed_dictionaries({"a": numbers}),
        "messages": st.none() | messages,
        "ids": st.none() | st.lists(st.none() | st.integers(-2, VOCAB + 2), max_size=150),
    }
)
SCHEMA = pa.schema(
    [
        ("text", pa.binary()),
        ("contexts", pa.list_(pa.string())),
        ("n", pa.float64()),
        ("fields", pa.struct([("a", pa.float32())])),
        ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("ids", pa.list_(pa.int64())),
    ]
)


@functools.cache
def builder(kind, on_too_long):
    config = PromptConfig(**PROMPTS[kind], on_too_long=on_too_long)
    return PromptBuilder(config, tiny_tokenizer(), MAX_MODEL_LEN, MAX_TOKENS)


def make_table(given_rows):
    table = pa.Table.from_pylist(given_rows, SCHEMA)
    return table.set_column(0, "text", table["text"].combine_chunks().view(pa.string()))


@settings(max_examples=200)
@given(
    st.lists(rows, min_size=1, max_size=5),
    st.sampled_from(sorted(PROMPTS)),
    st.sampled_from(["error", "truncate_left", "truncate_right"]),
)
def test_any_rows(given_rows, kind, on_too_long):
    table = make_table(given_rows)
    built = builder(kind, on_too_long).build(table)
    assert built.schema == PROMPT_SCHEMA and built.num_rows == len(given_rows)
    for row in built.to_pylist():
        judge(row, is_chat=kind.startswith(("templates", "messages")), is_text=kind == "text")


def judge(row, is_chat, is_text):
    if row["status"] == "failed":
        assert row["token_ids"] is None and row["error"]
        return
    ids = row["token_ids"]
    assert 0 < len(ids) <= MAX_MODEL_LEN - MAX_TOKENS and 0 <= min(ids) <= max(ids) < VOCAB
    assert (row["status"] == "truncated") == (row["error"] is not None) == (row["num_truncated"] > 0)
    pad, bos, _ = range(3)
    if is_chat:
        assert ids.count(bos) == 1 and ids[0] == bos and pad not in ids
    if is_text:
        assert min(ids) > 2


@settings(max_examples=50)
@given(st.lists(rows, min_size=1, max_size=4), st.sampled_from(sorted(PROMPTS)), st.integers(0, 3))
def test_no_row_depends_on_its_neighbours(given_rows, kind, number):
    number %= len(given_rows)
    together = builder(kind, "error").build(make_table(given_rows)).to_pylist()[number]
    assert builder(kind, "error").build(make_table(given_rows[number : number + 1])).to_pylist() == [together]
