"""The tokenizer inside a GGUF file, built from the file's own facts.

transformers can read it too, but some versions take the wrong end-of-text token, and none honours `tokenizer.ggml.pre`,
the file's word for how text is cut before merging: white space before numbers then gives other tokens than in training.
"""

from pathlib import Path
from typing import Any

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from batchpaged.errors import ModelError

CONTROL = 3  # the token type of special tokens


def tokenizer_from_gguf(gguf: Path) -> PreTrainedTokenizerFast:
    """Raises ModelError for a kind of tokenizer other than byte-level BPE with a known way to cut text."""
    facts = _facts(gguf)
    tokens: list[str] = facts["tokens"]
    tokenizer = Tokenizer(_byte_pairs(tokens, facts["merges"]))
    tokenizer.pre_tokenizer = _pre_tokenizer(facts)
    tokenizer.decoder = decoders.ByteLevel()
    special = (token for token, kind in zip(tokens, facts["token_type"], strict=True) if kind == CONTROL)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=_token(facts, "bos_token_id"),
        eos_token=_token(facts, "eos_token_id"),
        unk_token=_token(facts, "unknown_token_id"),
        pad_token=_token(facts, "padding_token_id"),
        chat_template=facts.get("chat_template"),
        clean_up_tokenization_spaces=False,
    )


def _facts(gguf: Path) -> dict[str, Any]:
    """Everything under `tokenizer.` in the file, by its last name."""
    fields = {name: field for name, field in GGUFReader(gguf).fields.items() if name.startswith("tokenizer.")}
    facts = {name.rsplit(".", 1)[-1]: field.contents() for name, field in fields.items()}
    missing = {"model", "pre", "tokens", "merges", "token_type", "eos_token_id"} - facts.keys()
    if missing:
        raise ModelError(f"{gguf.name} lacks {', '.join(sorted(missing))}: it holds no byte-level BPE tokenizer")
    if facts["model"] != "gpt2" or facts.get("add_bos_token"):
        raise ModelError(f"{gguf.name}: its tokenizer ({facts['model']}) is of a kind that cannot be converted")
    return facts


def _byte_pairs(tokens: list[str], merges: list[str]) -> models.BPE:
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    return models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=pairs)


def _pre_tokenizer(facts: dict[str, Any]) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if facts["pre"] == "gpt-2":
        return byte_level
    if facts["pre"] == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    raise ModelError(f"a tokenizer that cuts text as {facts['pre']!r} cannot be converted")


def _token(facts: dict[str, Any], name: str) -> str | None:
    return facts["tokens"][facts[name]] if name in facts else None
