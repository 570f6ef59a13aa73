"""Builds the sample data: documents/*.md -> prompts-00.parquet ... prompts-03.parquet, and
conversations.yaml -> conversations.parquet.

A source is one Markdown file. Above its "## Questions" heading stand one to three passages; below it one line
per question: "- (difficulty) Question? **answer** / **acceptable variant**". Difficulty 1 asks in the words of
the document, 2 in other words, 3 needs two neighbouring sentences. The front matter gives the topic and, where a
retriever would have returned two documents, the one whose passages come first (`retrieved_with`).

Usage: python sample_data/build.py [FOLDER]
"""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

HERE = Path(__file__).resolve().parent
SEED = 20250303
SHARD_SHARES = (0.34, 0.15, 0.28, 0.23)  # of all rows: files in the wild are not of one size
WORDS_PER_DOCUMENT = range(300, 451)
SCHEMA = pa.schema([
    ("id", pa.string()),
    ("topic", pa.string()),
    ("contexts", pa.list_(pa.string())),
    ("question", pa.string()),
    ("answers", pa.list_(pa.string())),
    ("difficulty", pa.int8()),
    ("created", pa.timestamp("us", tz="UTC")),
])
CONVERSATIONS_SCHEMA = pa.schema([
    ("id", pa.string()),
    ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
    ("reference", pa.string()),
])

_SOURCE = re.compile(r"---\n(?P<meta>.*?)---\n# .+?\n\n(?P<body>.+?)\n\n## Questions\n\n(?P<questions>.+)", re.DOTALL)
_ANSWER = r"\*\*[^*]+\*\*"
_QUESTION = re.compile(
    rf"- \((?P<difficulty>[123])\) (?P<text>[^*]+\?) (?P<answers>{_ANSWER}(?: / {_ANSWER}){{0,2}})"
)


@dataclass(frozen=True)
class Question:
    text: str
    answers: tuple[str, ...]  # one to three, each literally in the document
    difficulty: int  # 1..3


@dataclass(frozen=True)
class Document:
    id: str  # the file's stem
    topic: str
    passages: tuple[str, ...]  # one to three
    questions: tuple[Question, ...]
    retrieved_with: str | None  # id of the document whose passages come before these


def parse_question(line: str) -> Question:
    """Raises ValueError on a line that is not a question."""
    match = _QUESTION.fullmatch(line)
    if match is None:
        raise ValueError(f"not a question with one to three answers: {line}")
    answers = re.findall(r"\*\*(.+?)\*\*", match["answers"])
    return Question(match["text"], tuple(answers), int(match["difficulty"]))


def parse_document(path: Path) -> Document:
    """Raises ValueError, naming the file, on a source that does not have the form of the module docstring."""
    match = _SOURCE.fullmatch(path.read_text(encoding="utf-8"))
    if match is None:
        raise ValueError(f"{path}: needs front matter, a title, passages and a '## Questions' list")
    meta = yaml.safe_load(match["meta"])
    passages = tuple(" ".join(passage.split()) for passage in match["body"].split("\n\n"))
    try:
        questions = tuple(parse_question(line) for line in match["questions"].splitlines())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return Document(path.stem, meta["topic"], passages, questions, meta.get("retrieved_with"))


def read_documents(folder: Path = HERE / "documents") -> dict[str, Document]:
    """All documents by id. Raises ValueError that lists every problem of every source."""
    documents = {path.stem: parse_document(path) for path in sorted(folder.glob("*.md"))}
    problems = [problem for document in documents.values() for problem in problems_of(document, documents)]
    if problems:
        raise ValueError("\n".join(problems))
    return documents


def problems_of(document: Document, documents: dict[str, Document]) -> Iterator[str]:
    text = " ".join(document.passages)
    if len(text.split()) not in WORDS_PER_DOCUMENT:
        yield f"{document.id}: {len(text.split())} words, not in {WORDS_PER_DOCUMENT}"
    if not 1 <= len(document.passages) <= 3:
        yield f"{document.id}: {len(document.passages)} passages, not one to three"
    if document.retrieved_with not in (None, *documents):
        yield f"{document.id}: retrieved_with names no document: {document.retrieved_with}"
    for question, count in Counter(question.text for question in document.questions).items():
        if count > 1:
            yield f"{document.id}: asked {count} times: {question}"
    for answer in (answer for question in document.questions for answer in question.answers):
        if not contains_phrase(text, answer):
            yield f"{document.id}: answer is not in the document: {answer}"


def contains_phrase(text: str, phrase: str) -> bool:
    """True if `phrase` stands in `text` as whole words: "4.6" is in "at 4.6 km", not in "14.6"."""
    return re.search(rf"(?<![\w.,]){re.escape(phrase)}(?!\w|[.,]\d)", text) is not None


def contexts_of(document: Document, documents: dict[str, Document]) -> list[str]:
    """The passages every question about `document` is asked with, in the retriever's order."""
    before = documents[document.retrieved_with].passages if document.retrieved_with else ()
    return [*before, *document.passages]


def make_rows(documents: dict[str, Document]) -> list[dict[str, Any]]:
    """One row per question, shuffled, with rising times of creation as in a log of users' questions."""
    rows = [
        {"id": f"{document.id}-q{number}", "topic": document.topic, "contexts": contexts_of(document, documents),
         "question": question.text, "answers": list(question.answers), "difficulty": question.difficulty}
        for document in documents.values()
        for number, question in enumerate(document.questions, start=1)
    ]
    generator = random.Random(SEED)
    generator.shuffle(rows)
    created = datetime(2025, 3, 3, 7, 30, tzinfo=timezone.utc)
    for row in rows:
        created += timedelta(microseconds=generator.randrange(2_000_000, 900_000_000))
        row["created"] = created
    return rows


def shard_bounds(num_rows: int) -> list[tuple[int, int]]:
    """First and one-past-last row of each shard; every row is in exactly one."""
    shares = [sum(SHARD_SHARES[:count]) for count in range(len(SHARD_SHARES) + 1)]
    edges = [round(num_rows * share) for share in shares]
    return list(zip(edges, edges[1:]))


def make_conversation_rows(source: Path = HERE / "conversations.yaml") -> list[dict[str, Any]]:
    """One shuffled row per user turn: the messages up to it, and the reply that follows as the reference."""
    desk = yaml.safe_load(source.read_text(encoding="utf-8"))
    rows = []
    for conversation in desk["conversations"]:
        messages = [{"role": "system", "content": desk["system"]}]
        for number, turn in enumerate(conversation["turns"], start=1):
            messages = [*messages, {"role": "user", "content": turn["user"]}]
            rows.append({"id": f"{conversation['id']}-{number}", "messages": messages, "reference": turn["desk"]})
            messages = [*messages, {"role": "assistant", "content": turn["desk"]}]
    random.Random(SEED).shuffle(rows)
    return rows


def build(out_folder: Path, documents: dict[str, Document]) -> list[Path]:
    """Writes all files and returns their paths. The same sources and pyarrow version give the same bytes."""
    table = pa.Table.from_pylist(make_rows(documents), schema=SCHEMA)
    paths = []
    for index, (start, stop) in enumerate(shard_bounds(table.num_rows)):
        paths.append(out_folder / f"prompts-{index:02}.parquet")
        pq.write_table(table.slice(start, stop - start), paths[-1], compression="zstd")
    paths.append(out_folder / "conversations.parquet")
    conversations = pa.Table.from_pylist(make_conversation_rows(), schema=CONVERSATIONS_SCHEMA)
    pq.write_table(conversations, paths[-1], compression="zstd")
    return paths


def main(arguments: Sequence[str]) -> None:
    out_folder = Path(arguments[0]) if arguments else HERE
    try:
        paths = build(out_folder, read_documents())
    except ValueError as error:
        raise SystemExit(str(error)) from None
    for path in paths:
        print(f"{path.name}: {pq.read_metadata(path).num_rows} rows, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
