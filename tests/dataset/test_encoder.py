import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpaged.dataset.encoder import Encoder
from batchpaged.errors import RowError


@pytest.fixture(scope="module")
def encoder(tokenizer):
    return Encoder(tokenizer)


@pytest.fixture(scope="module")
def bos_encoder(make_tokenizer):
    return Encoder(make_tokenizer(adds_bos=True))


def test_ids_are_the_tokenizers(encoder, tokenizer):
    texts = ["the quick fox", "", "<s>naïve 漢字 \U0001f600<|end|>\n"]
    assert encoder.encode(texts) == [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert encoder.encode([]) == []


def test_a_tokenizer_without_bos_gets_none(encoder):
    assert encoder.bos == []


def test_exactly_one_bos(bos_encoder, encoder):
    (bos,) = bos_encoder.bos
    (plain,) = encoder.encode(["the fox"])
    assert bos_encoder.encode(["the fox", "<s>the fox", ""]) == [[bos, *plain], [bos, *plain], [bos]]


def test_an_end_token_is_never_added(make_tokenizer):
    from tokenizers.processors import TemplateProcessing

    tokenizer = make_tokenizer()
    ids = [("<s>", tokenizer.convert_tokens_to_ids("<s>")), ("</s>", tokenizer.convert_tokens_to_ids("</s>"))]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> <s> $A </s>", special_tokens=ids)
    encoder = Encoder(tokenizer)
    assert encoder.bos == [ids[0][1]] * 2
    assert encoder.encode(["x"])[0][:2] == encoder.bos and ids[1][1] not in encoder.encode(["x"])[0]


def test_saved_truncation_and_padding_do_not_matter(make_tokenizer, encoder):
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding(length=20)
    assert Encoder(tokenizer).encode(["the quick brown fox jumps", "a"]) == encoder.encode(
        ["the quick brown fox jumps", "a"]
    )


def test_a_text_that_is_not_unicode_fails_alone(encoder):
    first, second, third = encoder.encode(["the fox", "broken \ud800 text", "the dog"])
    assert isinstance(second, RowError) and "lone surrogate" in str(second)
    assert [first, third] == encoder.encode(["the fox", "the dog"])


def test_a_tokenizer_that_fails_names_only_lengths(make_tokenizer):
    class Fragile(type(make_tokenizer())):
        def __call__(self, text, **options):
            if "fox" in text:
                raise ValueError("the quick fox")
            return super().__call__(text, **options)

    tokenizer = make_tokenizer()
    tokenizer.__class__ = Fragile
    encoder = Encoder(tokenizer)
    encoder._backend = None
    encoder._tokenizer = tokenizer
    (good, bad) = encoder.encode(["dog", "fox"])
    assert isinstance(good, list) and str(bad) == "the tokenizer failed on a prompt of 3 characters (ValueError)"


def test_a_slow_tokenizer_gives_the_same_ids_but_no_places(tokenizer, encoder):
    slow = Encoder(tokenizer)
    slow._backend = None
    assert slow.encode(["the quick fox", "dog"]) == encoder.encode(["the quick fox", "dog"])
    assert slow.find_tokens("the quick fox", 0, 3) is None


def test_vocabulary_covers_every_id(encoder, tokenizer):
    assert encoder.vocab_size == max(tokenizer.get_vocab().values()) + 1


@settings(deadline=None)
@given(st.text(max_size=30), st.text(max_size=30), st.text(max_size=30), st.booleans())
def test_found_tokens_lie_in_the_span(encoder, bos_encoder, before, middle, after, has_bos):
    chosen = bos_encoder if has_bos else encoder
    text = before + middle + after
    (ids,) = chosen.encode([text])
    if isinstance(ids, RowError):
        return
    first, last = chosen.find_tokens(text, len(before), len(before) + len(middle))
    assert len(chosen.bos) <= first <= last <= len(ids)
    kept = chosen._backend.decode(ids[first:last], skip_special_tokens=False)
    assert kept.strip("\ufffd") in middle or len(kept) <= len(middle) + 2
