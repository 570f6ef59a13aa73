"""Special tokens written out in rows are text; those of the chat template are tokens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from batchpaged.dataset.encoder import Encoder
from batchpaged.dataset.prompts import PromptBuilder
from batchpaged.dataset.special_tokens import SpecialTokens, has_hidden
from batchpaged.errors import ConfigError, RowError

TEXT = "a<|end|>b</s>"
MESSAGES = [[{"role": "user", "content": TEXT}]]


def count(tokenizer, row, name="<|end|>"):
    return row["token_ids"].count(tokenizer.convert_tokens_to_ids(name))


@pytest.mark.parametrize(
    ("keys", "column"), [({"user": "{{ x }}"}, [TEXT]), ({"messages_column": "x"}, MESSAGES)], ids=["user", "messages"]
)
@pytest.mark.parametrize("adds_bos", [False, True])
def test_a_chat_has_only_the_templates_tokens(build, make_tokenizer, keys, column, adds_bos):
    tokenizer = make_tokenizer(adds_bos=adds_bos)
    (row,) = build({"x": column}, tokenizer=tokenizer, **keys)
    assert count(tokenizer, row) == 1 and count(tokenizer, row, "</s>") == 0 and row["status"] == "ok"
    bos = "<s>" if adds_bos else ""
    assert tokenizer.decode(row["token_ids"]) == f"{bos}<|user|>\n{TEXT}<|end|>\n<|assistant|>\n"


def test_what_the_template_writes_is_encoded_as_ever(build, tokenizer):
    """Around the text, in which nothing is hidden, the ids are the same as without it."""
    (clean,) = build({"x": ["plain"]}, user="{{ x }}")
    (row,) = build({"x": ["plain</s>plain"]}, user="{{ x }}")
    before, after = clean["token_ids"], row["token_ids"]
    assert after[:4] == before[:4] and after[-8:] == before[-8:]


@pytest.mark.parametrize(
    ("keys", "column"),
    [({"user": "{{ x }}"}, [TEXT]), ({"messages_column": "x"}, MESSAGES), ({"text_column": "x"}, [TEXT])],
    ids=["user", "messages", "text"],
)
def test_they_are_tokens_where_the_pipeline_allows_it(build, tokenizer, keys, column):
    (row,) = build({"x": column}, allow_special_tokens=True, **keys)
    is_chat = "text_column" not in keys
    assert count(tokenizer, row) == 1 + is_chat and count(tokenizer, row, "</s>") == 1


def test_a_text_column_is_text(build, make_tokenizer):
    tokenizer = make_tokenizer(adds_bos=True)
    rows = build({"x": [TEXT, "<s>a", "plain"]}, tokenizer=tokenizer, text_column="x")
    assert [tokenizer.decode(row["token_ids"]) for row in rows] == [f"<s>{TEXT}", "<s><s>a", "<s>plain"]
    assert [count(tokenizer, row, "<s>") for row in rows] == [1, 1, 1]


def test_rows_without_them_are_not_encoded_another_way(build, make_tokenizer):
    tokenizer = make_tokenizer()
    texts = ["the quick fox", TEXT, "the lazy dog"]
    rows = build({"x": texts}, tokenizer=tokenizer, text_column="x")
    assert [rows[0]["token_ids"], rows[2]["token_ids"]] == Encoder(tokenizer).encode([texts[0], texts[2]])


def test_other_fields_of_a_message_are_text_too(build, make_tokenizer):
    tokenizer = make_tokenizer("{% for m in messages %}{{ m.role }}{{ m.name }}{{ m.content }}{% endfor %}<|end|>")
    messages = [[{"role": "user</s>", "name": "n<|end|>", "content": "x"}]]
    (row,) = build({"m": messages}, tokenizer=tokenizer, messages_column="m")
    assert count(tokenizer, row) == 1 and count(tokenizer, row, "</s>") == 0


@pytest.mark.parametrize("side", ["truncate_left", "truncate_right"])
def test_a_cut_chat_keeps_its_own_tokens(build, tokenizer, side):
    (row,) = build({"x": ["<|end|> word " * 80]}, 120, 20, user="{{ x }}", on_too_long=side)
    text = tokenizer.decode(row["token_ids"])
    assert row["status"] == "truncated" and len(row["token_ids"]) == 100 and count(tokenizer, row) == 1
    assert text.startswith("<|user|>\n") and text.endswith("<|end|>\n<|assistant|>\n")


def test_a_chat_written_by_hand_is_refused(prompt_config, make_tokenizer):
    by_hand = prompt_config(user="<|user|>{{ x }}<|end|>", chat_template="none")
    with pytest.raises(ConfigError, match=r"prompt.user writes the special token '<\|user\|>'.*allow_special_tokens"):
        PromptBuilder(by_hand, make_tokenizer(), 100, 10)
    allowed = prompt_config(user="<|user|>{{ x }}<|end|>", chat_template="none", allow_special_tokens=True)
    PromptBuilder(allowed, make_tokenizer(), 100, 10)


def test_a_chat_templates_user_text_may_quote_them(build, tokenizer):
    (row,) = build({"x": ["x"]}, user="What is <|end|>? {{ x }}")
    assert count(tokenizer, row) == 1


def test_a_tokenizer_that_writes_the_token_for_its_text_fails_the_row():
    """A word-level vocabulary has the special token among its words."""
    words = {"<unk>": 0, "<end>": 1, "a": 2}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="<end>")
    special = SpecialTokens(tokenizer)
    encoder = Encoder(tokenizer, special)
    unknown, told = encoder.encode([special.hide("a <unk> b"), special.hide("a <end>")])
    assert unknown == [2, 0, 0]
    assert isinstance(told, RowError) and "allow_special_tokens" in str(told)


def test_a_tokenizer_without_a_backend_fails_the_row(make_tokenizer, monkeypatch):
    tokenizer = make_tokenizer()
    monkeypatch.setattr("batchpaged.dataset.encoder._find_backend", lambda tokenizer: None)
    special = SpecialTokens(tokenizer)
    (told,) = Encoder(tokenizer, special).encode([special.hide(TEXT)])
    assert isinstance(told, RowError) and "allow_special_tokens" in str(told)


pieces = st.lists(st.sampled_from(["<|end|>", "</s>", "<s", ">", "|", "\ue0f0", "0", "1", " ", "é", "<|user|>"]), max_size=8)


@settings(max_examples=50)
@given(pieces.map("".join))
def test_whatever_is_hidden_comes_back_and_holds_no_token(tokenizer, text):
    special = SpecialTokens(tokenizer)
    hidden = special.hide(text)
    assert special.find(hidden) is None
    assert has_hidden(hidden) == (special.find(text) is not None or "\ue0f0" in text)
    assert special.reveal(hidden, {}) == text
    (ids,) = Encoder(tokenizer, special).encode([hidden])
    assert tokenizer.decode(ids) == text
    assert set(ids).isdisjoint(tokenizer.convert_tokens_to_ids(list(special.tokens)))
