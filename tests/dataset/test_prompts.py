import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpaged.dataset.prompt_sources import TokenIdsSource
from batchpaged.dataset.prompts import PromptBuilder

SYSTEM = "You answer questions from the given context only."
USER = 'Context:\n{{ contexts | join("\\n\\n") }}\n\nQuestion: {{ question }}\n'


def errors(rows):
    for row in rows:
        is_failed = row["status"] == "failed"
        assert is_failed == (row["token_ids"] is None) == (row["num_truncated"] is None)
        assert (row["error"] is None) == (row["status"] == "ok")
    return [row["error"] for row in rows]


# What a good row becomes


def test_ids_equal_those_of_a_peer_that_renders_by_hand(build, tokenizer):
    table = {"contexts": [["one", "two"], [], ["é"]], "question": ["what?", "who?", "where <b>?"]}
    rows = build(table, system=SYSTEM, user=USER)
    for row, contexts, question in zip(rows, table["contexts"], table["question"], strict=True):
        messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": "Context:\n" + "\n\n".join(contexts) + "\n\nQuestion: " + question},
        ]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert row["token_ids"] == tokenizer(text, add_special_tokens=False).input_ids
        assert (row["num_truncated"], row["status"], row["error"]) == (0, "ok", None)


def test_without_a_chat_template_system_and_user_are_two_paragraphs(build, tokenizer):
    (row,) = build({"x": ["v"]}, system="S {{ x }}", user="U {{ x }}", chat_template="none")
    assert tokenizer.decode(row["token_ids"]) == "S v\n\nU v"


def test_messages_from_structs_and_json_give_the_same(build):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
    structs = build({"m": [messages]}, messages_column="m")
    assert structs == build({"m": [json.dumps(messages)]}, messages_column="m")
    assert structs == build({"x": ["hi"]}, system="s", user="{{ x }}")


def test_a_text_column_is_taken_as_it_is(build, tokenizer, make_tokenizer):
    (row,) = build({"t": ["the fox"]}, text_column="t")
    assert row["token_ids"] == tokenizer("the fox", add_special_tokens=False).input_ids
    (with_bos,) = build({"t": ["the fox"]}, text_column="t", tokenizer=make_tokenizer(adds_bos=True))
    assert with_bos["token_ids"] == [tokenizer.bos_token_id, *row["token_ids"]]


def test_token_ids_are_taken_as_they_are(build, make_tokenizer):
    rows = build({"ids": [[5, 6], [0, 7]]}, token_ids_column="ids", tokenizer=make_tokenizer(adds_bos=True))
    assert [row["token_ids"] for row in rows] == [[5, 6], [0, 7]]


def test_the_chat_templates_own_bos_counts(build, make_tokenizer):
    tokenizer = make_tokenizer("<s>[{{ messages[0].content }}]", adds_bos=True)
    (row,) = build({"x": ["v"]}, user="{{ x }}", tokenizer=tokenizer)
    assert row["token_ids"].count(tokenizer.bos_token_id) == 1


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
def test_layouts_of_strings_do_not_matter(build, kind):
    column = pa.chunked_array([pa.array(["the"], kind), pa.array(["fox", None], kind)])
    rows = build(pa.table({"t": column}), text_column="t")
    assert [row["status"] for row in rows] == ["ok", "ok", "failed"]
    assert rows == build(pa.table({"t": column}), user="{{ t }}", chat_template="none")[:2] + rows[2:]


def test_columns_are_those_the_prompt_uses(prompt_config, tokenizer):
    builder = PromptBuilder(prompt_config(system="{{ a }}", user="{{ c }}{{ a }}"), tokenizer, 100, 1)
    assert builder.columns == ["a", "c"]
    assert PromptBuilder(prompt_config(text_column="t"), tokenizer, 100, 1).columns == ["t"]


def test_a_constant_prompt_needs_no_column(build, prompt_config, tokenizer):
    assert PromptBuilder(prompt_config(user="hello"), tokenizer, 100, 1).columns == []
    assert [row["status"] for row in build({"x": [1, 2]}, user="hello")] == ["ok", "ok"]


def test_no_rows(build):
    assert build(pa.table({"t": pa.array([], pa.string())}), text_column="t") == []


def test_more_rows_than_are_tokenised_at_a_time(build, tokenizer):
    texts = [f"row {i}" if i % 7 else None for i in range(2500)]
    rows = build({"t": texts}, text_column="t")
    for text, row in zip(texts, rows, strict=True):
        assert (row["status"] == "failed") if text is None else (tokenizer.decode(row["token_ids"]) == text)


# What a bad row becomes


def test_a_bad_row_does_not_touch_its_neighbours(build):
    contexts = [["a"], None, ["b", None], ["c"], []]
    rows = build({"contexts": contexts, "question": ["q", "q", "q", None, "q"]}, user=USER)
    assert errors(rows) == [
        None,
        "prompt.user, line 2: contexts is null",
        "prompt.user, line 2: contexts[1] is null",
        "prompt.user, line 4: question is null",
        None,
    ]
    assert rows[0] == build({"contexts": [["a"]], "question": ["q"]}, user=USER)[0]


@pytest.mark.parametrize("text", ["", " ", "\n\t\u3000"])
def test_empty_prompts(build, text):
    assert "empty prompt: prompt.user gave" in errors(build({"x": [text]}, system="s", user="{{ x }}"))[0]
    assert "empty prompt: column 't'" in errors(build({"t": [text]}, text_column="t"))[0]
    messages = [{"role": "user", "content": text}]
    assert "empty prompt: column 'm'" in errors(build({"m": [messages]}, messages_column="m"))[0]


_ID_LISTS = st.lists(st.integers(0, 20), min_size=1, max_size=12)
_ODD_ID_LISTS = st.none() | st.just([]) | st.lists(st.none() | st.sampled_from([-1, 3, 10**6]), max_size=4)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(_ID_LISTS, max_size=8),
    st.lists(_ODD_ID_LISTS, max_size=2),
    st.sampled_from([pa.list_(pa.int64()), pa.list_(pa.int32()), pa.large_list(pa.int32())]),
    st.sampled_from(["error", "truncate_left", "truncate_right"]),
)
def test_token_ids_read_at_once_are_those_read_row_by_row(build, lists, odd, kind, on_too_long):
    table = pa.table({"ids": pa.array([*lists, *odd], kind)})
    keys = {"token_ids_column": "ids", "on_too_long": on_too_long, "max_model_len": 12, "max_tokens": 2}
    at_once = build(table, **keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TokenIdsSource, "read_at_once", lambda self, table: None)
        assert build(table, **keys) == at_once


def test_sound_token_ids_are_not_looked_at_row_by_row(build, monkeypatch):
    monkeypatch.setattr(TokenIdsSource, "read", None)
    table = pa.table({"ids": pa.array([[1, 2], [3]], pa.list_(pa.int64()))}).slice(1)
    assert [row["token_ids"] for row in build(table, token_ids_column="ids")] == [[3]]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "'ids' is null"),
        ([], "no token ids"),
        ([1, None], "found null"),
        ([-1], "outside 0 to"),
        ([1, 10**6], "outside 0 to"),
    ],
)
def test_bad_token_ids(build, value, words):
    rows = build(pa.table({"ids": pa.array([[1], value, [2]], pa.list_(pa.int64()))}), token_ids_column="ids")
    good, bad, also_good = errors(rows)
    assert good is None and also_good is None and words in bad


@pytest.mark.parametrize(
    ("keys", "column", "words"),
    [
        ({"text_column": "c"}, [7], "a int, must be a string"),
        ({"text_column": "c"}, [["x"]], "a list, must be a string"),
        ({"messages_column": "c"}, [7], "a int, must be a list of messages"),
        ({"token_ids_column": "c"}, ["x"], "a str, must be a list of token ids"),
        ({"token_ids_column": "c"}, [[1.5]], "found float"),
        ({"token_ids_column": "c"}, [[True]], "found bool"),
        ({"user": "{{ c }}"}, [["x"]], "prints a list"),
    ],
)  # fmt: skip
def test_wrong_types(build, keys, column, words):
    assert words in errors(build({"c": column}, **keys))[0]


def test_bytes_that_are_not_utf8_fail_their_row_only(build):
    offsets, data = pa.array([0, 2, 4, 5], pa.int32()).buffers()[1], pa.py_buffer(b"ok\xff\xfea")
    column = pa.Array.from_buffers(pa.string(), 3, [None, offsets, data])
    for keys in ({"text_column": "t"}, {"user": "{{ t }}"}, {"messages_column": "t"}):
        found = errors(build(pa.table({"t": column}), **keys))
        assert found[1] == "column 't': bytes that are not valid UTF-8"
        if "messages_column" not in keys:
            assert found[0] is None and found[2] is None


def test_lone_surrogates_fail_their_row_only(build):
    broken = '[{"role": "user", "content": "\\ud800"}]'
    rows = build({"m": [broken, '[{"role": "user", "content": "fine"}]']}, messages_column="m")
    assert errors(rows) == ["the prompt holds a lone surrogate, which is not valid Unicode", None]
    assert "lone surrogate" in errors(build({"x": [1]}, user="{{ '\\ud800' }}"))[0]


def test_a_date_python_cannot_hold(build):
    column = pa.array([0, 10**17], pa.timestamp("s"))
    first, second = errors(build(pa.table({"t": column}), user="{{ t }}"))
    assert first is None and second.startswith("column 't': a timestamp[s] that cannot be read")


def test_a_megabyte_of_text_and_control_characters(build):
    texts = ["word " * 200_000, "x" * 1_000_000, "\x00\x01\x1b[31m\u202e\ufeff"]
    long, one_word, control = build({"t": texts}, text_column="t", max_model_len=10**7)
    assert [long["status"], one_word["status"], control["status"]] == ["ok"] * 3


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.float16()])
def test_a_missing_number_fails_its_row_only(build, kind):
    numbers = pa.array(np.array([1.5, np.nan, 2.5], kind.to_pandas_dtype()))
    rows = build({"x": numbers}, user="{{ x }}")
    assert [row["status"] for row in rows] == ["ok", "failed", "ok"] and rows[1]["error"].endswith("x is NaN")
    nested = pa.array([[1.0], [float("nan")]], pa.list_(pa.float64()))
    assert [row["status"] for row in build({"x": nested}, user="{{ x | join }}")] == ["ok", "failed"]
