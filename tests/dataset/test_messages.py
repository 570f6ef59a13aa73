import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpaged.dataset.messages import ChatFormat, PlainFormat, find_user_text, make_format, parse_messages
from batchpaged.errors import ConfigError, RowError

SECRET = "a-secret-that-stands-in-a-row"
HELLO = [{"role": "user", "content": "hello"}]


def message(role, content):
    return {"role": role, "content": content}


@pytest.mark.parametrize("wrap", [lambda value: value, json.dumps], ids=["structs", "json"])
def test_messages_are_read(wrap):
    value = [{"role": "system", "content": ""}, {"role": "user", "content": "hi", "name": None}]
    assert parse_messages(wrap(value), "m") == [message("system", ""), message("user", "hi")]


@pytest.mark.parametrize("wrap", [lambda value: value, json.dumps], ids=["structs", "json"])
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "column 'm' is null"),
        ([], "empty prompt: column 'm' has 0 messages"),
        ([message("user", " \n")], "has 1 messages and no text"),
        ({"role": "user"}, "a dict, must be a list"),
        (7, "a int, must be a list"),
        ([*HELLO, None], "message 1: a null"),
        ([[SECRET]], "message 0: a list"),
        ([{"content": SECRET}], "message 0: no 'role'"),
        ([{"role": "user"}], "message 0: no 'content'"),
        ([message(None, SECRET)], "'role' is null"),
        ([message("", SECRET)], "'role' is empty"),
        ([message("user", None)], "'content' is null"),
        ([message("user", [{"text": SECRET}])], "'content' is list, must be a string"),
        ([message("user", 3)], "'content' is int"),
    ],
)
def test_malformed_messages_are_named_without_their_content(value, words, wrap):
    with pytest.raises(RowError) as caught:
        parse_messages(wrap(value), "m")
    assert words in str(caught.value) and SECRET not in str(caught.value)


@pytest.mark.parametrize("text", ["", SECRET, '[{"role": "user"', '"text"', "[" * 100_000, "9" * 5000])
def test_json_that_is_no_conversation(text):
    with pytest.raises(RowError) as caught:
        parse_messages(text, "m")
    assert "column 'm'" in str(caught.value) and SECRET not in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(JSON)
def test_any_json_is_messages_or_a_row_error(value):
    try:
        messages = parse_messages(json.dumps(value), "m")
        assert all(isinstance(m["role"], str) and isinstance(m["content"], str) for m in messages)
    except RowError:
        pass


def test_plain_form():
    conversations = [[message("system", "s"), message("user", "u")], HELLO, [message("system", ""), *HELLO]]
    assert PlainFormat().render(conversations) == ["s\n\nu", "hello", "hello"]


def test_auto_takes_the_chat_template_if_there_is_one(tokenizer, make_tokenizer):
    assert make_format(tokenizer, "auto").render([HELLO]) == ["<|user|>\nhello<|end|>\n<|assistant|>\n"]
    assert make_format(make_tokenizer(chat_template=None), "auto").render([HELLO]) == ["hello"]
    assert make_format(tokenizer, "none").render([HELLO]) == ["hello"]


def test_a_template_file(tokenizer, tmp_path):
    (tmp_path / "chat.jinja").write_text("{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}")
    assert make_format(tokenizer, str(tmp_path / "chat.jinja")).render([HELLO]) == ["[user] hello"]


def test_a_template_file_that_is_missing_or_wrong(tokenizer, tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*nosuch\.jinja: No such file"):
        make_format(tokenizer, str(tmp_path / "nosuch.jinja"))
    (tmp_path / "binary.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        make_format(tokenizer, str(tmp_path / "binary.jinja"))
    (tmp_path / "broken.jinja").write_text("a\n{% for m in %}")
    with pytest.raises(ConfigError, match="prompt.chat_template, line 2"):
        make_format(tokenizer, str(tmp_path / "broken.jinja"))


def test_several_named_templates_use_the_default(make_tokenizer):
    assert make_format(make_tokenizer({"default": "d", "rag": "r"}), "auto").render([HELLO]) == ["d"]
    with pytest.raises(ConfigError, match="prompt.chat_template"):
        make_format(make_tokenizer({"a": "d", "rag": "r"}), "auto")


def test_a_conversation_that_the_template_refuses_fails_alone(tokenizer):
    refused = [message(SECRET, SECRET)]
    first, second, third = ChatFormat(tokenizer, None).render([HELLO, refused, HELLO])
    assert first == third == "<|user|>\nhello<|end|>\n<|assistant|>\n"
    assert isinstance(second, RowError) and str(second) == "chat template: Unknown role! (roles: (other))"


def test_a_template_that_quotes_the_row_is_not_repeated(make_tokenizer):
    tokenizer = make_tokenizer("{{ raise_exception('bad: ' + messages[0]['content']) }}")
    (result,) = ChatFormat(tokenizer, None).render([[message("user", SECRET)]])
    assert str(result) == "chat template: the chat template refused the messages (roles: user)"


def test_a_template_that_breaks(make_tokenizer):
    (result,) = ChatFormat(make_tokenizer("{{ messages[0]['content'] + 1 }}"), None).render([HELLO])
    assert str(result) == "chat template: TypeError (roles: user)"


def test_roles_that_no_row_could_use_are_refused_at_once(make_tokenizer):
    chat = ChatFormat(
        make_tokenizer("{% if messages[0].role == 'system' %}{{ raise_exception('No system role') }}{% endif %}"), None
    )
    chat.check(["user"])
    with pytest.raises(ConfigError, match="roles system, user: No system role"):
        chat.check(["system", "user"])


def test_the_user_text_is_found(tokenizer):
    chat = ChatFormat(tokenizer, None)
    messages = [message("user", "hello"), message("assistant", "hello"), message("user", "hello")]
    (text,) = chat.render([messages])
    start, end = find_user_text(chat, messages, text)
    assert text[start:end] == "hello" and start == text.rindex("hello")


def test_the_user_text_is_found_after_the_template_trimmed_it(make_tokenizer):
    chat = ChatFormat(make_tokenizer("[{{ messages[0].content | trim }}]"), None)
    assert find_user_text(chat, [message("user", " hi ")], "[hi]") == (1, 3)


@pytest.mark.parametrize(
    "template", ["{{ messages[0].content }}{{ messages[0].content }}", "nothing", "{{ messages[0].content[:1] }}"]
)
def test_a_user_text_that_is_not_in_one_piece(make_tokenizer, template):
    chat = ChatFormat(make_tokenizer(template), None)
    assert find_user_text(chat, HELLO, chat.render([HELLO])[0]) is None


def test_no_user_message_at_all(tokenizer):
    assert find_user_text(ChatFormat(tokenizer, None), [message("system", "x")], "x") is None
