"""What the diagnosis stands on: shared lengths against a trie, passages that are the text again, spellings."""

import itertools
import os

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning.prompts import PROMPT_LISTS, num_common, num_tree_nodes, token_array

from batchpaged.config import PromptConfig
from batchpaged.planning.diagnosis.fields import change_texts, plain_messages, read_texts
from batchpaged.planning.diagnosis.passages import lines, name_differences, normalise, sentences, whole
from batchpaged.planning.diagnosis.sharing import share_texts, share_tokens
from batchpaged.planning.order import plan_order
from batchpaged.planning.summary import num_unique_tokens

TEXTS = st.text(alphabet=st.sampled_from("ab.! ?\n\r\t\u00a0\u200b\u2009é"), max_size=30)


# --- sharing ---


@given(PROMPT_LISTS)
def test_tokens_are_counted_as_the_plan_counts_them(prompts):
    sharing = share_tokens([np.array(prompt, np.int32) for prompt in prompts])
    assert sharing.num_items == sum(map(len, prompts))
    assert sharing.num_unique == num_tree_nodes(prompts) == num_unique_tokens(plan_order(token_array(prompts)))
    for i, prompt in enumerate(prompts):
        others = [num_common(prompt, other) for j, other in enumerate(prompts) if j != i]
        assert sharing.longest[i] == max(others, default=0)
        if sharing.before[i] != i:
            assert sharing.num_shared[i] == num_common(prompt, prompts[sharing.before[i]])


@given(st.lists(TEXTS, max_size=8))
def test_bytes_of_texts(texts):
    keys = [text.encode() for text in texts]
    sharing = share_texts(keys)
    assert sharing.num_unique == len({key[: i + 1] for key in keys for i in range(len(key))})
    pairs = itertools.permutations(range(len(keys)), 2)
    longest = {i: 0 for i in range(len(keys))}
    for i, j in pairs:
        longest[i] = max(longest[i], len(os.path.commonprefix([keys[i], keys[j]])))
    assert sharing.longest.tolist() == list(longest.values())


# --- passages ---


@pytest.mark.parametrize("cut", [whole, lines, sentences])
@given(text=TEXTS)
def test_passages_are_the_text(cut, text):
    passages = cut(text)
    assert "".join(passages) == text and (text == "" or all(passages))


def test_lines_and_sentences():
    text = "One. Two\u00a0is two!  Three\n\n four, 5.6"
    assert lines(text) == ["One. Two\u00a0is two!  Three\n\n ", "four, 5.6"]
    assert sentences(text) == ["One. ", "Two\u00a0is two!  ", "Three\n\n ", "four, 5.6"]


@given(TEXTS)
def test_how_a_text_is_written_does_not_matter(text):
    for respelt in (text.replace(" ", "\u00a0"), text.replace("\n", "\r\n"), f" {text}\u200b ", text.replace("é", "e\u0301")):
        assert normalise(respelt) == normalise(text)
        assert bool(name_differences({text, respelt})) == (respelt != text)


def test_words_do_matter():
    assert len({normalise(text) for text in ("a b", "ab", "a c", "a B")}) == 4


# --- texts inside tables ---

NESTED = {
    "name": ["x", None],
    "docs": [[{"title": "t", "tags": ["u", None]}, None], []],
    "count": [1, 2],
}
PLACES = [{("name",): "x", ("docs", 0, "title"): "t", ("docs", 0, "tags", 0): "u"}, {}]


def test_every_text_can_be_read_and_changed():
    table, config = pa.table(NESTED), PromptConfig(user="x")
    assert read_texts(table, config, table.column_names) == PLACES
    changed = change_texts(table, config, table.column_names, lambda row, place, text: text + "!")
    assert changed.schema == table.schema
    assert read_texts(changed, config, table.column_names)[0] == {place: f"{text}!" for place, text in PLACES[0].items()}
    same = change_texts(table, config, table.column_names, lambda row, place, text: text)
    assert all(same[name] is table[name] or same[name].equals(table[name]) for name in table.column_names)


@pytest.mark.parametrize("as_json", [True, False])
def test_messages_are_read_by_number_and_role(as_json):
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    cell = '[{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]' if as_json else chat
    config = PromptConfig(messages_column="chat")
    table = plain_messages(pa.table({"chat": [cell, "no chat" if as_json else None]}), config)
    assert read_texts(table, config, ["chat"]) == [{("chat", 0, "system"): "s", ("chat", 1, "user"): "u"}, {}]
    changed = change_texts(table, config, ["chat"], lambda row, place, text: text.upper())
    assert read_texts(changed, config, ["chat"])[0] == {("chat", 0, "system"): "S", ("chat", 1, "user"): "U"}
