"""When a sequence ends, and that no stop text is ever part of its completion."""

from collections.abc import Iterable

import pytest
from hypothesis import assume, example, given, settings, strategies as st
from tiny_models import tiny_tokenizer

from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.sequence import Sequence
from batchpaged.engine.stop import NUM_MARGIN_TOKENS, StopCheck

EOS = 2  # of the byte tokenizer; ids 0 to 2 are special


class Pieces:
    """A tokenizer whose tokens are the given pieces of text; an empty piece stands for a special token."""

    def __init__(self, pieces: Iterable[str]) -> None:
        self.pieces = list(pieces)

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return "".join(self.pieces[token] for token in token_ids)


class Bytes:
    """A tokenizer of single bytes, or of any runs of them: characters may be split over tokens."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.pieces = list(pieces)

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        return b"".join(self.pieces[token] for token in token_ids).decode("utf-8", "replace")


def run(check: StopCheck, tokens: Iterable[int], params: SamplingParams) -> Sequence:
    """Append tokens until the check ends the sequence."""
    sequence = Sequence(0, [7, 8, 9], 3, params, seed=0)
    for token in tokens:
        sequence.token_ids.append(token)
        sequence.finish_reason = check.finish_reason(sequence)
        if sequence.finish_reason is not None:
            break
    return sequence


def outcome(pieces: list[str], *stops: str, **params: object) -> tuple[str | None, int, str]:
    """(finish reason, number of tokens, completion) of a model that generates these pieces in turn."""
    check = StopCheck(Pieces(pieces), frozenset())
    sequence = run(check, range(len(pieces)), SamplingParams(**({"max_tokens": 99, "stop": stops} | params)))
    return sequence.finish_reason, sequence.num_generated_tokens, check.text(sequence)


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "num_tokens"),
    [
        (["Paris", ".\n", "\nQ"], ["\n\n"], "Paris.", 3),  # across a token boundary
        (["Par", "is END"], [" END"], "Paris", 2),  # at the end of a token
        (["Paris STOP and more"], ["STOP"], "Paris ", 1),  # in the middle of the very first token
        (["STOP"], ["STOP"], "", 1),  # is the very first token
        (["S", "T", "O", "P"], ["STOP"], "", 4),
        (["one STOP two", "END"], ["END", "STOP"], "one ", 1),
        (["a END b STOP c"], ["STOP", "END"], "a ", 1),  # two in one token: the earlier one
        (["xabcd"], ["bc", "abcd"], "x", 1),  # the one that begins first, though the other ends first
        (["x", "ab", "c", "d"], ["abcd", "bc"], "xa", 3),  # the one that is complete first
        (["aa", "ab"], ["aab"], "a", 2),  # a false start overlaps the true one
        (["no", "", "", "ne", ""], ["one"], "n", 4),  # special tokens in between
        (["ST", *[""] * 40, "OP"], ["STOP"], "", 42),  # any number of them
        (["a", " ", " ", "b"], ["  "], "a", 3),
    ],
)
def test_stop_strings(pieces: list[str], stops: list[str], text: str, num_tokens: int) -> None:
    assert outcome(pieces, *stops) == ("stop", num_tokens, text)


def test_without_a_stop_the_text_is_whole() -> None:
    assert outcome(["a", "b", "c"], "x", max_tokens=3) == ("length", 3, "abc")


def test_a_beginning_of_a_stop_string_stays() -> None:
    assert outcome(["a", "ST", "O"], "STOP", max_tokens=3) == ("length", 3, "aSTO")


def test_a_stop_string_far_longer_than_its_tokens_are_many() -> None:
    stop = "x" * 50
    assert outcome([*"ab", *"x" * 50, "c"], stop) == ("stop", 52, "ab")


def test_a_stop_string_wins_over_the_length_on_the_last_token() -> None:
    assert outcome(["a", "END"], "END", max_tokens=2) == ("stop", 2, "a")


@pytest.mark.parametrize("split", range(1, 8))
def test_stop_strings_across_utf8_boundaries(split: int) -> None:
    """Every byte is a token, or every few: no piece of a character hides a stop string or survives it."""
    data = "Zürich – 東京🙂✋ mehr".encode()
    pieces = [data[i : i + split] for i in range(0, len(data), split)]
    for stop, text in {"🙂": "Zürich – 東京", "京🙂✋": "Zürich – 東", "ü": "Z", "✋ ": "Zürich – 東京🙂"}.items():
        check = StopCheck(Bytes(pieces), frozenset())
        sequence = run(check, range(len(pieces)), SamplingParams(max_tokens=99, stop=(stop,)))
        assert (sequence.finish_reason, check.text(sequence)) == ("stop", text)


def test_a_byte_level_tokenizer() -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer("naïve 🙂 answer\n\nQuestion: more").input_ids
    check = StopCheck(tokenizer, frozenset({EOS}))
    for stop, text in {"\n\nQ": "naïve 🙂 answer", "🙂": "naïve ", "ï": "na", "n": ""}.items():
        sequence = run(check, ids, SamplingParams(max_tokens=99, stop=(stop,)))
        assert (sequence.finish_reason, check.text(sequence)) == ("stop", text)


def test_a_byte_level_tokenizer_with_special_tokens_in_between() -> None:
    tokenizer = tiny_tokenizer()
    start, end = tokenizer("say ST").input_ids, tokenizer("OP now").input_ids
    check = StopCheck(tokenizer, frozenset({EOS}))
    params = SamplingParams(max_tokens=99, stop=("STOP",), ignore_eos=True)
    sequence = run(check, [*start, *[EOS] * 30, *end], params)
    assert (sequence.finish_reason, check.text(sequence)) == ("stop", "say ")


PIECES = st.lists(st.text("ab\n é", max_size=3), min_size=1, max_size=30)
STOPS = st.lists(st.text("ab\n é", min_size=1, max_size=4), min_size=1, max_size=3, unique=True)


@settings(max_examples=400)
@given(pieces=PIECES, stops=STOPS)
@example(pieces=["a", *[""] * 20, "b"], stops=["ab"])
@example(pieces=["é", "a", "bb"], stops=["bb", "ab"])
def test_stop_text_is_never_part_of_the_completion(pieces: list[str], stops: list[str]) -> None:
    """And nothing else is lost: the completion is all text before the first stop string to be complete."""
    reason, num_tokens, text = outcome(pieces, *stops)
    so_far = [("".join(pieces[:n]), n) for n in range(1, len(pieces) + 1)]
    first = next(((full, n) for full, n in so_far if any(stop in full for stop in stops)), None)
    if first is None:
        assert (reason, text) == (None, "".join(pieces))
        return
    full, n = first
    assert (reason, num_tokens) == ("stop", n)
    assert text == full[: min(full.find(stop) for stop in stops if stop in full)]
    assert not any(stop in text for stop in stops)


@settings(max_examples=200)
@given(text=st.text(st.characters(codec="utf-8"), min_size=1, max_size=25), data=st.data())
def test_stop_text_is_found_wherever_bytes_are_split(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text) - 1))
    stop = text[start : data.draw(st.integers(start + 1, len(text)))]
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw)))) | {len(raw)})
    pieces = [raw[a:b] for a, b in zip([0, *cuts[:-1]], cuts, strict=True)]
    check = StopCheck(Bytes(pieces), frozenset())
    sequence = run(check, range(len(pieces)), SamplingParams(max_tokens=99, stop=(stop,)))
    assume("\ufffd" not in text)  # as a stop string it would meet the halves of characters
    assert (sequence.finish_reason, check.text(sequence)) == ("stop", text[: text.find(stop)])


def test_end_of_text_ends_and_is_no_text() -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer("ab").input_ids
    check = StopCheck(tokenizer, frozenset({EOS}))
    sequence = run(check, [*ids, EOS, *ids], SamplingParams(max_tokens=99))
    assert (sequence.finish_reason, sequence.num_generated_tokens, check.text(sequence)) == ("stop", 3, "ab")


def test_end_of_text_at_once_gives_an_empty_completion() -> None:
    check = StopCheck(tiny_tokenizer(), frozenset({EOS}))
    sequence = run(check, [EOS], SamplingParams(max_tokens=99))
    assert (sequence.finish_reason, check.text(sequence)) == ("stop", "")


def test_ignore_eos_goes_on_to_max_tokens() -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer("ab").input_ids
    check = StopCheck(tokenizer, frozenset({EOS}))
    sequence = run(check, [*ids, EOS, *ids, EOS], SamplingParams(max_tokens=6, ignore_eos=True))
    assert (sequence.finish_reason, sequence.num_generated_tokens, check.text(sequence)) == ("length", 6, "abab")


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_stop_token_ids_end_a_completion_and_are_no_text(ignore_eos: bool) -> None:
    params = {"stop_token_ids": frozenset({2}), "ignore_eos": ignore_eos}
    assert outcome(["a", "b", "c", "d"], **params) == ("stop", 3, "ab")


def test_a_stop_token_is_cut_off_though_a_stop_string_is_set() -> None:
    assert outcome(["a", "b", "c"], "x", stop_token_ids=frozenset({1})) == ("stop", 2, "a")


def test_one_token_at_most() -> None:
    assert outcome(["a", "b"], max_tokens=1) == ("length", 1, "a")
    assert outcome(["a", "b"], "a", max_tokens=1) == ("stop", 1, "")
    assert outcome(["a", "b"], max_tokens=1, stop_token_ids=frozenset({0})) == ("stop", 1, "")


def test_no_more_than_the_end_of_the_text_is_decoded_for_each_token() -> None:
    """Otherwise the cost of a completion would grow with the square of its length."""
    longest = 0

    class Counting(Pieces):
        def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
            nonlocal longest
            longest = max(longest, len(token_ids))
            return super().decode(token_ids, skip_special_tokens)

    run(StopCheck(Counting(["a"] * 500), frozenset()), range(500), SamplingParams(max_tokens=999, stop=("xyz",)))
    assert longest <= 3 + NUM_MARGIN_TOKENS
