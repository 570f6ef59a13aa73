"""The sample data: files match their sources, answers stand in the contexts, and the pipelines run on them."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from itertools import groupby
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchpaged.config import load_pipeline
from batchpaged.prepare import _column_problems

ROOT = Path(__file__).resolve().parents[1]
SAMPLE_DATA = ROOT / "sample_data"
SHARDS = sorted(SAMPLE_DATA.glob("prompts-*.parquet"))
SOURCE = """---
topic: toys
---
# Title

The red ball costs 4.60 crowns.

## Questions

- (1) What does it cost? **4.60 crowns** / **4.60**
"""


def load_build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sample_data_build", SAMPLE_DATA / "build.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def build() -> ModuleType:
    return load_build()


@pytest.fixture(scope="module")
def documents(build: ModuleType) -> dict:
    return build.read_documents()


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return pa.concat_tables(pq.read_table(path) for path in SHARDS).to_pylist()


def document_of(row: dict) -> str:
    return row["id"].rpartition("-q")[0]


def test_committed_files_are_what_the_sources_give(build, documents, tmp_path):
    rebuilt = build.build(tmp_path, documents)
    committed = [*SHARDS, SAMPLE_DATA / "conversations.parquet"]
    assert [path.name for path in rebuilt] == [path.name for path in committed]
    for new, old in zip(rebuilt, committed, strict=True):
        assert pq.read_table(new).equals(pq.read_table(old)), f"{old.name}: run python sample_data/build.py"


def test_building_twice_gives_the_same_bytes(build, documents, tmp_path):
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    first, second = [[path.read_bytes() for path in build.build(folder, documents)] for folder in folders]
    assert first == second


def test_shards_are_several_of_unequal_size_and_one_schema(build, rows):
    assert len(SHARDS) == 4
    assert len({pq.read_metadata(path).num_rows for path in SHARDS}) == len(SHARDS)
    assert all(pq.read_schema(path).equals(build.SCHEMA) for path in SHARDS)
    assert len(rows) >= 165


def test_ids_are_unique(rows):
    assert Counter(row["id"] for row in rows).most_common(1)[0][1] == 1


def test_each_answer_stands_in_the_contexts(build, rows):
    for row in rows:
        assert 1 <= len(row["answers"]) <= 3, row["id"]
        for answer in row["answers"]:
            assert any(build.contains_phrase(passage, answer) for passage in row["contexts"]), row["id"]


def test_each_document_has_five_questions_or_more_and_one_contexts_list(rows):
    contexts: dict[str, list] = {}
    for row in rows:
        assert contexts.setdefault(document_of(row), row["contexts"]) == row["contexts"], row["id"]
    num_questions = Counter(map(document_of, rows))
    assert len(num_questions) >= 30
    assert min(num_questions.values()) >= 5


def test_some_contexts_begin_with_the_whole_contexts_of_another_document(build, documents):
    paired = [document for document in documents.values() if document.retrieved_with]
    assert len(paired) >= 2
    for document in paired:
        before = documents[document.retrieved_with].passages
        assert build.contexts_of(document, documents) == [*before, *document.passages]


def test_order_is_shuffled_over_all_shards(rows):
    num_runs = sum(1 for _ in groupby(rows, key=document_of))
    assert num_runs > 0.9 * len(rows)
    for path in SHARDS:
        assert len({i.rpartition("-q")[0] for i in pq.read_table(path)["id"].to_pylist()}) > 20


def test_created_rises_and_difficulty_is_one_to_three(rows):
    created = [row["created"] for row in rows]
    assert created == sorted(set(created))
    assert {row["difficulty"] for row in rows} == {1, 2, 3}


def test_conversations_grow_turn_by_turn():
    chats = {row["id"]: row for row in pq.read_table(SAMPLE_DATA / "conversations.parquet").to_pylist()}
    for chat_id, row in chats.items():
        name, _, number = chat_id.rpartition("-")
        assert [m["role"] for m in row["messages"]] == ["system", *["user", "assistant"] * (int(number) - 1), "user"]
        if number != "1":
            before = chats[f"{name}-{int(number) - 1}"]["messages"]
            assert row["messages"][: len(before)] == before


@pytest.mark.parametrize("text, phrase, expected", [
    ("The course is 4.6 km long.", "4.6 km", True),
    ("The course is 14.6 km long.", "4.6 km", False),
    ("It cost 3,400 florins.", "400 florins", False),
    ("It cost 3,400 florins.", "3", False),
    ("It was lit in 1874.", "1874", True),
    ("Jory Pell", "Jory", True),
    ("Marigolds", "Marigold", False),
])  # fmt: skip
def test_contains_phrase_matches_whole_words_only(build, text, phrase, expected):
    assert build.contains_phrase(text, phrase) is expected


@pytest.mark.parametrize("change, message", [
    (("**4.60**", "**5 crowns**"), "answer is not in the document: 5 crowns"),
    (("topic: toys", "topic: toys\nretrieved_with: nothing"), "retrieved_with names no document: nothing"),
    (("crowns.", "crowns."), "toy: 6 words"),
    (("- (1) ", "- "), "not a question with one to three answers"),
    (("## Questions", "## Other"), "needs front matter"),
])  # fmt: skip
def test_a_wrong_source_is_refused_with_its_reason(build, tmp_path, change, message):
    (tmp_path / "toy.md").write_text(SOURCE.replace(*change), encoding="utf-8")
    with pytest.raises(ValueError, match="toy") as raised:
        build.read_documents(tmp_path)
    assert message in str(raised.value)


@pytest.mark.parametrize("path", sorted((ROOT / "pipelines").glob("*.yaml")), ids=lambda path: path.stem)
def test_each_pipeline_is_valid_and_finds_its_columns(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    pipeline = load_pipeline(path)
    patterns = [pipeline.input.path] if isinstance(pipeline.input.path, str) else pipeline.input.path
    files = [file for pattern in patterns for file in ROOT.glob(pattern)]
    assert files
    for file in files:
        schema = pq.read_schema(file)
        assert pipeline.input.id_column in schema.names
        assert _column_problems(pipeline, schema) == []
    assert pipeline.output.path == f"runs/{path.stem}" == f"runs/{pipeline.name}"
