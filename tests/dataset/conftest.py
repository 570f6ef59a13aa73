"""What the tests of the data set share: small files, a tiny tokenizer made here, stand-ins for pipeline models."""

import json
import os
from types import SimpleNamespace

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from batchpaged.dataset.prompts import PROMPT_SCHEMA, PromptBuilder
from batchpaged.dataset.schema import OUTPUT_COLUMNS
from batchpaged.dataset.source import open_source

SECRET = "a-secret-that-stands-in-a-row"
CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "Context:\n\nQuestion: what is the answer?",
    "You answer questions.",
]
SPECIAL = ["<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}{{ raise_exception('Unknown role!') }}{% endif %}"
    "{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


@pytest.fixture
def input_config():
    """Makes stand-ins for InputConfig."""

    def make(path, id_column=None, limit=None):
        path = tuple(map(str, path)) if isinstance(path, (list, tuple)) else str(path)
        return SimpleNamespace(path=path, id_column=id_column, limit=limit)

    return make


@pytest.fixture(scope="session")
def prompt_config():
    """Makes stand-ins for PromptConfig."""

    def make(**keys):
        defaults = dict.fromkeys(("system", "user", "messages_column", "text_column", "token_ids_column"))
        more = {"chat_template": "auto", "on_too_long": "error", "reorder": None, "allow_special_tokens": False}
        return SimpleNamespace(**{**defaults, **more, **keys})

    return make


@pytest.fixture
def write(tmp_path):
    """Writes {name: table or columns} below the temporary folder and returns that folder."""

    def write_files(files, **options):
        for name, table in files.items():
            table = table if isinstance(table, pa.Table) else pa.table(table)
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, tmp_path / name, **options)
        return tmp_path

    return write_files


@pytest.fixture
def memory_fs():
    """fsspec's in-memory filesystem, empty before and after."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]
    yield filesystem
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]


@pytest.fixture(scope="session")
def make_tokenizer():
    """Makes a byte-level BPE tokenizer with a few hundred tokens, with or without chat template and BOS."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers import PreTrainedTokenizerFast

    def make(chat_template=CHAT_TEMPLATE, adds_bos=False):
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        )
        backend.train_from_iterator(CORPUS, trainer)
        if adds_bos:
            backend.post_processor = processors.TemplateProcessing(
                single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
            )
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
        tokenizer.chat_template = chat_template
        return tokenizer

    return make


@pytest.fixture(scope="session")
def tokenizer(make_tokenizer):
    return make_tokenizer()


@pytest.fixture(scope="session")
def build(prompt_config, tokenizer):
    """Builds the prompts of a table (or columns) and gives them as rows."""

    def build_rows(table, max_model_len=2048, max_tokens=32, tokenizer=tokenizer, **keys):
        table = table if isinstance(table, pa.Table) else pa.table(table)
        built = PromptBuilder(prompt_config(**keys), tokenizer, max_model_len, max_tokens).build(table)
        assert built.schema.equals(PROMPT_SCHEMA) and built.num_rows == table.num_rows
        rows = built.to_pylist()
        assert SECRET not in json.dumps([row["error"] for row in rows])
        return rows

    return build_rows


@pytest.fixture(scope="session")
def results():
    """Makes what the engine would have written for some ordinals."""
    return _results


@pytest.fixture(scope="session")
def write_units():
    """Writes one unit file per list of ordinals, after removing older ones, and returns the folder."""
    return _write_units


@pytest.fixture
def source(write, input_config):
    """Three files, ten rows, the ids in order."""
    files = {
        "a.parquet": {"id": [0, 1, 2, 3], "words": [["x"], None, [], ["y", None]]},
        "b.parquet": {"id": pa.array([], pa.int64())},
        "c.parquet": {"id": [4, 5, 6, 7, 8, 9]},
    }
    folder = write({f"input/{name}": columns for name, columns in files.items()}, row_group_size=2)
    return open_source(input_config(folder / "input"))


def _results(ordinals):
    """What the engine would have written for these rows; every seventh row failed."""
    rows = [
        {
            "ordinal": i,
            "completion": None if i % 7 == 0 else f"completion {i}",
            "finish_reason": None if i % 7 == 0 else "stop",
            "prompt_tokens": i,
            "cached_tokens": i // 2,
            "completion_tokens": 3,
            "status": "failed" if i % 7 == 0 else "ok",
            "error": "null" if i % 7 == 0 else None,
            "prompt_hash": f"{i:032x}",
        }
        for i in ordinals
    ]
    return pa.Table.from_pylist(rows, pa.schema([pa.field("ordinal", pa.int64()), *OUTPUT_COLUMNS]))


def _write_units(folder, units):
    folder.mkdir(exist_ok=True)
    for path in folder.glob("unit-*.parquet"):
        path.unlink()
    for i, ordinals in enumerate(units):
        pq.write_table(_results(ordinals), folder / f"unit-{i:05}.parquet")
    return folder
