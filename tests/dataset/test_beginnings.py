"""What is known of prompts before an earlier stage has spoken: true whatever it will say."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpaged.dataset.beginnings import NOTHING_KNOWN, BeginningBuilder
from batchpaged.dataset.prompts import PromptBuilder

QUESTIONS = ["What is it?", "And why, then?", "Who was there?"]
# One template each way of using a column.
USES = [
    "{{ a }}",
    "{{ a[0] }}",
    "{{ a | upper }}",
    "{{ a | length }}",
    "{{ a ~ question }}",
    "{{ 'x' + a }}",
    "{{ a.strip() }}",
    "{% if a %}yes{% endif %}",
    "{% if 'x' in a %}yes{% else %}no{% endif %}",
    "{% if a == 'x' %}yes{% endif %}",
    "{% for c in a %}{{ c }}{% endfor %}",
    "{% set b = a %}{{ b }}",
    "{{ a | tojson }}",
    "{{ '%s' | format(a) }}",
]


@pytest.fixture(scope="module")
def beginnings(prompt_config, tokenizer):
    def make(table, unknown=("a", "unused"), max_model_len=2048, **keys):
        config = prompt_config(**keys)
        builder = BeginningBuilder(config, PromptBuilder(config, tokenizer, max_model_len, 32), unknown)
        return builder.build(pa.table(table)).to_pylist()

    return make


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("chat_template", ["auto", "none"])
def test_every_use_ends_what_is_known(beginnings, build, use, chat_template):
    table = {"question": QUESTIONS}
    rows = beginnings(table, system="Judge.", user=f"{{{{ question }}}} It is {use}.", chat_template=chat_template)
    known = build(table, system="Judge.", user="{{ question }} It is ", chat_template=chat_template)
    for row, whole in zip(rows, known, strict=True):
        assert row["status"] == "ok"
        assert row["token_ids"] == whole["token_ids"][: len(row["token_ids"])]
        assert len(row["token_ids"]) > len(whole["token_ids"]) // 2


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=8), min_size=3, max_size=3), st.integers(0, 2))
def test_prompts_begin_with_it_whatever_the_stage_says(beginnings, build, answers, place):
    parts = ["{{ question }} ", "Well: ", "So "]
    user = "".join([*parts[:place], "\n{{ a }} ", *parts[place:], "{{ a }}"])
    rows = beginnings({"question": QUESTIONS}, system="Judge.", user=user)
    whole = build({"question": QUESTIONS, "a": answers}, system="Judge.", user=user)
    for row, other in zip(rows, whole, strict=True):
        assert other["token_ids"][: len(row["token_ids"])] == row["token_ids"]


def test_what_is_known_of_a_system_text_and_of_nothing(beginnings):
    table = {"question": QUESTIONS}
    by_system = beginnings(table, system="Rules: {{ a }}", user="{{ question }}")
    assert len({tuple(row["token_ids"]) for row in by_system}) == 1
    nothing = beginnings(table, user="{{ a }}", chat_template="none")
    assert {row["error"] for row in nothing} == {NOTHING_KNOWN}


def test_a_row_without_the_use_is_known_whole_and_one_that_fails_before_it_fails(beginnings, build):
    table = {"question": [None, "Why?", "Who?"], "ask": [True, True, False]}
    user = "{{ question }}{% if ask %} {{ a }}{% endif %}"
    assert beginnings(table, user=user, max_model_len=34)[2]["error"].startswith("too long: ")
    failed, cut, whole = beginnings(table, user=user)
    assert failed["error"] == "prompt.user, line 1: question is null"
    (other,) = build({"question": ["Who?"]}, user="{{ question }}")
    assert whole["token_ids"] == other["token_ids"] and len(cut["token_ids"]) < len(whole["token_ids"])
