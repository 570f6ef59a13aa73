import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def test_a_row_that_is_too_long_says_by_how_much(build):
    rows = build({"ids": [[1] * 8, [1] * 9]}, token_ids_column="ids", max_model_len=10, max_tokens=2)
    assert [row["status"] for row in rows] == ["ok", "failed"]
    assert [row["error"] for row in rows] == [None, "too long: 9 prompt tokens + 2 max_tokens > 10 max_model_len"]


@pytest.mark.parametrize(("side", "kept"), [("truncate_left", [4, 5, 6]), ("truncate_right", [1, 2, 3])])
def test_token_ids_are_cut(build, side, kept):
    (row,) = build({"ids": [[1, 2, 3, 4, 5, 6]]}, 5, 2, token_ids_column="ids", on_too_long=side)
    assert (row["token_ids"], row["num_truncated"], row["status"]) == (kept, 3, "truncated")
    side = side.replace("truncate_left", "start").replace("truncate_right", "end")
    assert row["error"].endswith(f"3 tokens were removed from the {side} of the user text")


def test_cut_token_ids_keep_their_bos(build, make_tokenizer):
    tokenizer = make_tokenizer(adds_bos=True)
    bos = tokenizer.bos_token_id
    (row,) = build({"ids": [[bos, 11, 12, 13]]}, 4, 1, tokenizer, token_ids_column="ids", on_too_long="truncate_left")
    assert row["token_ids"] == [bos, 12, 13]


@pytest.mark.parametrize("side", ["truncate_left", "truncate_right"])
@pytest.mark.parametrize("adds_bos", [False, True])
def test_a_cut_chat_keeps_everything_but_user_text(build, make_tokenizer, side, adds_bos):
    tokenizer = make_tokenizer(adds_bos=adds_bos)
    words = [f"word{i}" for i in range(100)]
    keys = {"system": "Be brief.", "user": "{{ x }}", "on_too_long": side, "tokenizer": tokenizer}
    (whole,) = build({"x": [" ".join(words)]}, **keys)
    (row,) = build({"x": [" ".join(words)]}, 120, 20, **keys)
    assert len(row["token_ids"]) == 100 and row["num_truncated"] == len(whole["token_ids"]) - 100
    text = tokenizer.decode(row["token_ids"])
    assert text.startswith(("<s>" if adds_bos else "") + "<|system|>\nBe brief.<|end|>\n<|user|>\n")
    assert text.endswith("<|end|>\n<|assistant|>\n")
    assert (words[-1] in text, words[0] + " " in text) == ((True, False) if side == "truncate_left" else (False, True))


def test_only_the_last_user_message_is_cut(build, tokenizer):
    messages = [
        {"role": "user", "content": "first question " * 5},
        {"role": "assistant", "content": "answer"},
        {"role": "user", "content": "second " * 50},
    ]
    (row,) = build({"m": [messages]}, 120, 20, messages_column="m", on_too_long="truncate_left")
    text = tokenizer.decode(row["token_ids"])
    assert "first question " * 5 in text and len(row["token_ids"]) == 100


def test_what_is_not_user_text_is_never_cut(build):
    (row,) = build({"x": ["hi"]}, 60, 20, system="long " * 50, user="{{ x }}", on_too_long="truncate_left")
    assert row["status"] == "failed" and "of the tokens are user text that could be removed" in row["error"]


def test_a_template_that_scatters_the_user_text_is_not_cut(build, make_tokenizer):
    tokenizer = make_tokenizer("{{ messages[0].content }}{{ messages[0].content }}")
    (row,) = build({"x": ["long " * 50]}, 60, 20, tokenizer, user="{{ x }}", on_too_long="truncate_left")
    assert row["status"] == "failed" and "cannot be told" in row["error"]


@settings(deadline=None)
@given(st.text(min_size=1, max_size=80), st.sampled_from(["truncate_left", "truncate_right"]), st.integers(1, 60))
def test_a_cut_text_is_a_piece_of_the_whole(build, text, side, room):
    whole = build({"t": [text]}, text_column="t")[0]
    row = build({"t": [text]}, room + 1, 1, text_column="t", on_too_long=side)[0]
    if whole["status"] == "failed":
        assert row["status"] == "failed"
    elif len(whole["token_ids"]) <= room:
        assert row == whole
    else:
        expected = whole["token_ids"][-room:] if side == "truncate_left" else whole["token_ids"][:room]
        assert row["token_ids"] == expected and row["num_truncated"] == len(whole["token_ids"]) - room
