"""Data files that cannot be used, made by script: each with words of the reason that has to be given."""

import gzip
import json
import os
import pickle
import sqlite3
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.ipc
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

TABLE = pa.table({"id": [f"row-{i}" for i in range(200)], "question": [f"What is {i}?" for i in range(200)]})


@dataclass(frozen=True)
class BadFiles:
    """What `make` writes into a folder, how the pipeline names it, and what is said of it, word by word."""

    name: str
    make: Callable[[Path], Any]
    words: tuple[str, ...]
    sections: dict[str, Any] = field(default_factory=dict)
    path: str = "*.parquet"  # in the folder

    def pipeline(self, folder: Path) -> dict[str, Any]:
        paths = [f"{folder}/{name}" for name in self.path.split(" ")]
        sections = {"prompt": {"user": "{{ question }}"}, **self.sections}
        sections["input"] = {"path": paths if len(paths) > 1 else paths[0], **sections.get("input", {})}
        return {"model": {"id": "none"}, "output": {"path": str(folder / "run")}, **sections}


def parquet(table: pa.Table = TABLE, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return sink.getvalue().to_pybytes()


def columns(**values: Any) -> bytes:
    return parquet(pa.table(values))


def written(content: bytes, name: str = "a.parquet") -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(content)


def files(**contents: bytes) -> Callable[[Path], Any]:
    """`a=...` becomes a.parquet."""
    return lambda folder: [(folder / f"{name}.parquet").write_bytes(content) for name, content in contents.items()]


# --- files that are no whole Parquet files ---

GOOD = parquet()
FOOTER = int.from_bytes(GOOD[-8:-4], "little")


def footer_of(length: int) -> bytes:
    return GOOD[:-8] + length.to_bytes(4, "little") + b"PAR1"


def with_feather(folder: Path) -> None:
    feather.write_feather(TABLE, folder / "a.parquet", compression="uncompressed")


def with_stream(folder: Path) -> None:
    with pa.ipc.new_stream(folder / "a.parquet", TABLE.schema) as writer:
        writer.write_table(TABLE)


def with_sqlite(folder: Path) -> None:
    connection = sqlite3.connect(folder / "a.parquet")
    connection.execute("create table t (question text)")
    connection.commit()
    connection.close()


def with_zip(folder: Path) -> None:
    with zipfile.ZipFile(folder / "a.parquet", "w") as archive:
        archive.writestr("a.parquet", GOOD)


class _Keys(pe.KmsClient):
    """Wraps keys by doing nothing to them."""

    def __init__(self, config: pe.KmsConnectionConfig) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, master: str) -> bytes:
        return key

    def unwrap_key(self, key: bytes, master: str) -> bytes:
        return key


def encrypted(has_plain_footer: bool) -> Callable[[Path], Any]:
    def make(folder: Path) -> None:
        config = pe.EncryptionConfiguration(
            footer_key="f", column_keys={"k": ["question"]}, plaintext_footer=has_plain_footer
        )
        properties = pe.CryptoFactory(_Keys).file_encryption_properties(pe.KmsConnectionConfig(), config)
        with pq.ParquetWriter(folder / "a.parquet", TABLE.schema, encryption_properties=properties) as writer:
            writer.write_table(TABLE)

    return make


NOT_WHOLE = [
    BadFiles("empty", written(b""), ("a.parquet", "empty (0 bytes)")),
    BadFiles("magic-only", written(b"PAR1"), ("truncated", "no footer")),
    BadFiles("eight-bytes", written(b"PAR1PAR1"), ("a.parquet",)),
    BadFiles("half", written(GOOD[: len(GOOD) // 2]), ("truncated: it starts as Parquet",)),
    BadFiles("without-its-last-byte", written(GOOD[:-1]), ("truncated",)),
    BadFiles("without-its-start", written(GOOD[40:]), ("damaged: a piece of it is missing",)),
    BadFiles("without-its-middle", written(GOOD[:100] + GOOD[200:]), ("damaged: a piece of it is missing",)),
    BadFiles("footer-longer-than-the-file", written(footer_of(10**6)), ("damaged", "longer than the file")),
    BadFiles("footer-of-nothing", written(footer_of(0)), ("a.parquet",)),
    BadFiles("footer-too-short", written(footer_of(FOOTER // 2)), ("a.parquet",)),
    BadFiles("footer-of-zeros", written(GOOD[: -FOOTER - 8] + bytes(FOOTER) + GOOD[-8:]), ("a.parquet",)),
    BadFiles("random-bytes", written(bytes(range(128, 256)) * 20), ("not a Parquet file",)),
    BadFiles("zeros", written(bytes(4096)), ("not a Parquet file",)),
    BadFiles("csv", written(b"id,question\n1,What?\n"), ("not Parquet but text (CSV?)",)),
    BadFiles("json", written(json.dumps(TABLE.to_pylist()).encode()), ("JSON text",)),
    BadFiles("toml", written(b'[project]\nname = "x"\n'), ("text (CSV?)", "Read are Parquet files")),
    BadFiles("json-lines", written(b'{"question": "a"}\n{"question": "b"}\n'), ("JSON text",)),
    BadFiles("html", written(b"<!doctype html><title>404</title>"), ("HTML", "failed download")),
    BadFiles("lfs-pointer", written(b"version https://git-lfs.github.com/spec/v1\noid x\n"), ("git lfs pull",)),
    BadFiles("gzip", written(gzip.compress(GOOD)), ("compressed with gzip",)),
    BadFiles("zstd", written(b"\x28\xb5\x2f\xfd" + bytes(20)), ("compressed with zstd",)),
    BadFiles("zip", with_zip, ("a zip archive",)),
    BadFiles("avro", written(b"Obj\x01" + bytes(20)), ("an Avro file",)),
    BadFiles("orc", lambda folder: orc.write_table(TABLE, folder / "a.parquet"), ("an ORC file",)),
    BadFiles("arrow-file", with_feather, ("an Arrow file; write it as Parquet",)),
    BadFiles("arrow-stream", with_stream, ("an Arrow stream; name it *.arrow",)),
    BadFiles("pickle", written(pickle.dumps(TABLE.to_pylist())), ("not a Parquet file",)),
    BadFiles("sqlite", with_sqlite, ("not a Parquet file",)),
    BadFiles("text-with-bom", written("\ufeffid;question\n".encode()), ("text (CSV?)",)),
    BadFiles("utf-16-text", written("id;question\n".encode("utf-16")), ("not a Parquet file",)),
    BadFiles("encrypted", encrypted(False), ("encrypted", "without encryption")),
    BadFiles("encrypted-columns", encrypted(True), ("encrypted", "without encryption")),
    BadFiles("zero-rows", written(parquet(TABLE.slice(0, 0))), ("the input file holds no rows",)),
    BadFiles("no-columns", written(parquet(pa.table({}))), ("the input has no columns",)),
    BadFiles(
        "column-twice",
        written(parquet(pa.Table.from_arrays([TABLE["id"], TABLE["id"]], ["question", "question"]))),
        ("more than one column is called 'question'",),
    ),
]

# --- places where no file is ---


def arrow_stream(folder: Path) -> None:
    with pa.ipc.new_stream(folder / "a.arrow", TABLE.schema) as writer:
        writer.write_table(TABLE)
    whole = (folder / "a.arrow").read_bytes()
    (folder / "a.arrow").write_bytes(whole[: len(whole) // 2])


def saved_dataset(state: bytes) -> Callable[[Path], Any]:
    def make(folder: Path) -> None:
        (folder / "saved").mkdir()
        (folder / "saved" / "dataset_info.json").write_text("{}")
        (folder / "saved" / "state.json").write_bytes(state)

    return make


def dataset_of_splits(folder: Path) -> None:
    (folder / "splits").mkdir()
    (folder / "splits" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')


PLACES = [
    BadFiles("missing", written(GOOD), ("does not exist", "did you mean 'a.parquet'?"), path="b.parquet"),
    BadFiles("missing-folder", written(GOOD), ("does not exist",), path="no/such/folder"),
    BadFiles("glob-of-nothing", written(GOOD), ("matches no file",), path="q*.parquet"),
    BadFiles("folder-without-parquet", written(b"x", "a.csv"), ("no *.parquet file", "1 *.csv"), path=""),
    BadFiles("hidden-files-only", written(GOOD, "_a.parquet"), ("starts with _ or .",), path=""),
    BadFiles("folder-named-as-a-file", lambda folder: (folder / "a.parquet").mkdir(), ("folder",)),
    BadFiles("broken-link", lambda folder: (folder / "a.parquet").symlink_to("gone"), ("a.parquet",), path="a.parquet"),
    BadFiles("pipe", lambda folder: os.mkfifo(folder / "a.parquet"), ("a.parquet",), path="a.parquet"),
    BadFiles("twice", written(GOOD), ("named 2 times",), path="a.parquet *.parquet"),
    BadFiles("half-an-arrow-stream", arrow_stream, ("truncated or not an Arrow stream",), path="a.arrow"),
    BadFiles("saved-dataset-without-state", saved_dataset(b"no json"), ("saved",), path="saved"),
    BadFiles("saved-dataset-of-nothing", saved_dataset(b'{"_data_files": [{"filename": "x.arrow"}]}'), ("x.arrow",), path="saved"),
    BadFiles("saved-dataset-that-leaves-its-folder", saved_dataset(b'{"_data_files": [{"filename": "../a.arrow"}]}'), ("../a.arrow",), path="saved"),
    BadFiles("several-splits", dataset_of_splits, ("2 splits", "name one of them"), path="splits"),
    BadFiles("unknown-scheme", written(GOOD), ("nosuch://",), {"input": {"path": "nosuch://a/b.parquet"}}),
]

# --- files that do not go together, or not with the pipeline ---

TEXT, NUMBER = columns(question=["a"]), columns(question=[1])
UTC, PARIS = (columns(question=["a"], t=pa.array([0], pa.timestamp("s", zone))) for zone in ("UTC", "Europe/Paris"))
IDS = columns(id=["a", "b", "a", None], question=["x"] * 4)


def clash(name: str) -> BadFiles:
    return BadFiles(f"column-{name}", written(columns(question=["a"], **{name: ["b"]})), (repr(name), "output column"))


def column_case(name: str, values: Any, prompt: dict[str, Any], *words: str) -> BadFiles:
    return BadFiles(name, written(columns(question=["a"], x=values)), words, {"prompt": prompt})


TOGETHER = [
    BadFiles("string-and-integer", files(a=TEXT, b=NUMBER), ("'question' is string in", "but int64 in", "b.parquet")),
    BadFiles("string-and-list", files(a=TEXT, b=columns(question=[["a"]])), ("'question' is string", "list<")),
    BadFiles("string-and-struct", files(a=TEXT, b=columns(question=[{"a": 1}])), ("'question' is string", "struct<")),
    BadFiles("two-time-zones", files(a=UTC, b=PARIS), ("'t' is timestamp[", "Europe/Paris")),
    BadFiles("date-and-string", files(a=TEXT, b=columns(question=pa.array([0], pa.date32()))), ("date32",)),
    BadFiles(
        "integer-that-no-double-holds",
        files(a=columns(question=["a"], n=[2**53 + 1]), b=columns(question=["b"], n=[0.5])),
        ("column 'n' is int64", "do not fit double"),
    ),
    BadFiles("one-bad-among-good", files(a=GOOD, b=GOOD[:-9], c=GOOD), ("b.parquet", "1 problem)")),
    BadFiles(
        "all-at-once",
        files(a=GOOD, b=b"", c=b"id,question\n", d=columns(id=["x"], question=[1]), e=GOOD[:50]),
        ("4 problems", "b.parquet: the file is empty", "c.parquet: not Parquet", "int64 in", "e.parquet: truncated"),
    ),
    *map(clash, ["completion", "finish_reason", "prompt_tokens", "cached_tokens"]),
    *map(clash, ["completion_tokens", "status", "error", "prompt_hash"]),
    BadFiles("ids-twice", written(IDS), ("not unique: 1 id occurs", "null in 1 of 4"), {"input": {"id_column": "id"}}),
    BadFiles("ids-twice-across-files", files(a=GOOD, b=GOOD), ("not unique: 200 ids",), {"input": {"id_column": "id"}}),
    BadFiles("no-id-column", written(GOOD), ("no column 'ids'", "'id'"), {"input": {"id_column": "ids"}}),
    BadFiles("ids-of-floats", written(columns(question=["a"], f=[0.5])), ("double",), {"input": {"id_column": "f"}}),
    column_case("template-column", ["a"], {"user": "{{ qestion }}"}, "did you mean 'question'?"),
    column_case("text-column-of-numbers", [1], {"text_column": "x"}, "is int64, must be a string"),
    column_case("messages-of-numbers", [1], {"messages_column": "x"}, "must be a list of structs"),
    column_case("messages-without-role", [[{"content": "a"}]], {"messages_column": "x"}, "role and content"),
    column_case("token-ids-of-text", ["a"], {"token_ids_column": "x"}, "must be a list of integers"),
    column_case("token-ids-of-floats", [[0.5]], {"token_ids_column": "x"}, "must be a list of integers"),
    column_case("reorder-of-text", ["a"], {"user": "{{ x }}", "reorder": "x"}, "must be a list of documents"),
    BadFiles("no-references", written(GOOD), ("evaluate.references", "'answer'"), {"evaluate": {"references": "answer"}}),
    BadFiles(
        "references-of-numbers",
        written(columns(question=["a"], n=[1])),
        ("evaluate", "int64"),
        {"evaluate": {"references": "n"}},
    ),
    BadFiles(
        "columns-and-references-at-once",
        written(GOOD),
        ("qestion", "'answer'"),
        {"prompt": {"user": "{{ qestion }}"}, "evaluate": {"references": "answer"}},
    ),
]

TOGETHER += [
    BadFiles(
        "files-columns-and-gates-at-once",
        files(a=GOOD, b=b""),
        ("hit_rte", "f2 > 1", "triton", "b.parquet: the file is empty", "qestion", "2 problems)"),
        {"prompt": {"user": "{{ qestion }}"}, "gates": ["hit_rte > 1", "f2 > 1"], "engine": {"attention": "triton", "device": "cpu"}},
    ),
]

ALL = [*NOT_WHOLE, *PLACES, *TOGETHER]
