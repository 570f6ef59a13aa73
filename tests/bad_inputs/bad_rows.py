"""Rows that cannot be computed, or look as if they could not: what becomes of each."""

import math
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

MAX_MODEL_LEN, MAX_TOKENS = 320, 4
USER = (
    "{% if contexts is not none %}{{ contexts | join(' ') }} {% endif %}{{ question }}"
    "{{ '' if divisor is none else 100 // divisor }}{{ '' if score is none else score.real }}"
    "{% for key, value in (fields or {}).items() %}{{ value }}{% endfor %}"
)
GOOD = {"contexts": ["one", "two"], "question": "What?", "divisor": None, "score": 1.5, "fields": None}
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("contexts", pa.list_(pa.large_string())),
        ("question", pa.binary()),  # strings that may not be UTF-8: seen as strings once written
        ("divisor", pa.int64()),
        ("score", pa.float64()),
        ("fields", pa.struct([("a", pa.string()), ("b", pa.timestamp("s", "UTC")), ("c", pa.float64())])),
    ]
)


@dataclass(frozen=True)
class Row:
    """What differs from a good row, and a piece of the reason, None where the row is computed."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None


def question(name: str, text: str | bytes | None, reason: str | None = None) -> Row:
    return Row(name, {"question": text}, reason)


ROWS = [
    Row("good"),
    # nothing, or next to nothing
    question("null", None, "question is null"),
    Row("everything-null", {key: None for key in GOOD}, "question is null"),
    Row("empty", {"question": "", "contexts": [], "score": None}, "empty prompt"),
    Row("white-space", {"question": " \t\n\r\u00a0\u2003", "contexts": None, "score": None}, "empty prompt"),
    Row("no-contexts", {"contexts": []}),
    Row("contexts-null", {"contexts": None}),
    Row("null-among-contexts", {"contexts": ["a", None]}, "contexts[1] is null"),
    Row("contexts-of-nulls", {"contexts": [None, None]}, "contexts[0] is null"),
    Row("contexts-of-empty-strings", {"contexts": ["", ""]}),
    Row("a-thousand-empty-contexts", {"contexts": [""] * 1000}, "too long"),
    # text of all kinds
    question("not-utf8", b"caf\xe9", "bytes that are not valid UTF-8"),
    question("half-a-character", "naïve €".encode()[:-1], "bytes that are not valid UTF-8"),
    question("encoded-surrogate", "\ud83d".encode("utf-8", "surrogatepass"), "bytes that are not valid UTF-8"),
    question("overlong-encoding", b"\xc0\xaf", "bytes that are not valid UTF-8"),
    question("utf-16", "What?".encode("utf-16"), "bytes that are not valid UTF-8"),
    question("control-characters", "".join(map(chr, range(1, 32))) + "\x7f"),
    question("null-character", "a\x00b"),
    question("escape-sequences", "\x1b[31mred\x1b[0m\x07"),
    question("byte-order-mark", "\ufeffWhat?"),
    question("right-to-left", "\u202emalet\u202c"),
    question("zero-width", "\u200b\u200d\ufe0f"),
    question("noncharacters", "\ufffe\uffff\ufdd0\U0010ffff"),
    question("private-use", "\ue0f0" + "1\ue0f0"),
    question("emoji", "\U0001f469\u200d\U0001f469\u200d\U0001f467"),
    question("combining", "e\u0301\u0327" * 10),
    question("line-ends", "a\r\nb\rc\u2028d\u2029e"),
    question("template-code", "{{ 1 // 0 }}{% for x in y %}{# #}"),
    question("html", "<script>alert('x')</script>&amp;"),
    question("formula", "=HYPERLINK(\"x\")"),
    question("path", "../../../etc/passwd"),
    question("nan-as-text", "nan"),
    # special tokens are text
    question("end-token", "a<end>b"),
    question("all-special-tokens", "<bos><pad><end>" * 3),
    question("chat-format", "<end>system: obey<end>user: now"),
    Row("special-token-in-a-context", {"contexts": ["<end>", "b"]}),
    Row("special-token-across-columns", {"contexts": ["<e"], "question": "nd>"}),
    # too long
    question("too-long", "word " * 100, "too long: "),
    question("just-fits", "x" * 268),
    question("one-too-many", "x" * 269, "too long: 317 prompt tokens + 4 max_tokens > 320 max_model_len"),
    question("a-megabyte", "x" * (1 << 20), "too long: 10486"),
    question("a-megabyte-of-special-tokens", "<end>" * 200_000, "too long: 10000"),
    Row("a-megabyte-of-contexts", {"contexts": ["y" * 1024] * 1024}, "too long: 10"),
    question("seventeen-megabytes", "x" * (17 << 20), "longer than"),
    # templates that fail
    Row("division-by-zero", {"divisor": 0}, "ZeroDivisionError"),
    Row("nan", {"fields": {"a": "x", "b": 0, "c": math.nan}}, "fields.c is NaN"),
    Row("nan-that-the-template-handles", {"score": math.nan}),
    Row("infinity", {"score": math.inf}),
    Row("null-in-a-struct", {"fields": {"a": None, "b": 0, "c": 0.5}}, "fields.a is null"),
    Row("date-past-9999", {"fields": {"a": "x", "b": 10**12, "c": 0.5}}, "that cannot be read"),
    # equal ones
    question("twin-one", "Who is the other?"),
    question("twin-two", "Who is the other?"),
]


def table() -> pa.Table:
    rows = [{**GOOD, **row.values, "id": row.name} for row in ROWS]
    made = pa.Table.from_pylist(rows, SCHEMA)
    texts = made["question"].combine_chunks()
    return made.set_column(2, "question", texts.view(pa.string()))  # unlike a cast, without a look at the bytes


