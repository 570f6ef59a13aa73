"""Whole runs with LoRA adapters."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_adapters
import tiny_runs
from tiny_models import reference_generate, tiny_tokenizer

import batchpaged
from batchpaged import api
from batchpaged.errors import ConfigError, InputError, ModelError

MAX_TOKENS = 6
QUESTIONS = [f"A common beginning, long enough for some blocks. {i}" for i in range(3)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("adapters")
    return {name: str(tiny_adapters.save_adapter(root / name, seed)) for seed, name in enumerate("ab")}


def pipeline(tmp_path, rows, folders, **model):
    path = tmp_path / "rows.parquet"
    if not path.exists():  # another version of it would be another run
        pq.write_table(pa.Table.from_pylist(rows), path)
    return tiny_runs.pipeline(
        tmp_path / "run",
        input={"path": str(path)},
        prompt={"text_column": "q"},
        model={"id": str(tiny_runs.model()), "max_model_len": 128, "adapters": folders, **model},
        sampling={"max_tokens": MAX_TOKENS, "ignore_eos": True},
        evaluate=None,
        gates=[],
    )


def expected(folder, question):
    ids = tiny_tokenizer().encode(question)
    model = tiny_adapters.merged_model(folder)
    return tiny_tokenizer().decode(reference_generate(model, ids, MAX_TOKENS), skip_special_tokens=True)


def test_each_row_is_answered_by_its_own_adapter(folders, tmp_path):
    """Equal prompts are computed once per adapter; what is shared is shared by rows of one adapter only."""
    names = ["a", None, "b"]
    rows = [{"q": q, "who": name} for q in QUESTIONS for name in names] * 2 + [{"q": QUESTIONS[0], "who": "c"}]
    report = api.run(pipeline(tmp_path, rows, folders, adapter_column="who")).report
    out = pq.read_table(tmp_path / "run/output").to_pylist()
    found = {(row["who"], row["q"]): row["completion"] for row in out[:-1]}
    paths = {**{name: tmp_path.__class__(folder) for name, folder in folders.items()}, None: None}
    assert found == {(name, q): expected(paths[name], q) for name in names for q in QUESTIONS}
    assert len({found[name, QUESTIONS[0]] for name in names}) == 3
    assert out[-1]["status"] == "failed" and "model.adapters (a, b)" in out[-1]["error"]
    assert report["rows"]["deduplicated"] == len(names) * len(QUESTIONS)
    num_shared = len(QUESTIONS[0]) - 1
    assert report["tokens"]["unique"] == report["tokens"]["prefilled"] == len(names) * (num_shared + len(QUESTIONS))


def test_one_adapter_for_all_rows(folders, tmp_path):
    out = pipeline(tmp_path, [{"q": QUESTIONS[0]}], folders, adapter="b")
    api.run(out)
    completion = pq.read_table(tmp_path / "run/output")["completion"].to_pylist()
    assert completion == [expected(tmp_path.__class__(folders["b"]), QUESTIONS[0])]


def test_other_weights_are_another_run_and_another_folder_is_not(folders, tmp_path):
    rows = [{"q": "a question"}]
    copy = tiny_adapters.save_adapter(tmp_path / "copy", 0)
    first = api.run(pipeline(tmp_path, rows, {"a": folders["a"]}, adapter="a")).report["run"]
    assert api.run(pipeline(tmp_path, rows, {"a": str(copy)}, adapter="a")).report["run"]["id"] == first["id"]
    tiny_adapters.save_adapter(copy, 7)
    with pytest.raises(batchpaged.RefusedError, match="model.adapters"):
        api.run(pipeline(tmp_path, rows, {"a": str(copy)}, adapter="a"))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"adapters": {"a": "nowhere"}, "adapter": "a"}, ModelError, "model.adapters.a: nowhere is no folder"),
        ({"adapter": "c"}, ConfigError, "model.adapter = 'c': is no name in model.adapters, which has a, b"),
        ({}, ConfigError, "are used by no row"),
        ({"adapter": "a", "adapter_column": "q"}, ConfigError, "leave one of them out"),
        ({"adapters": {}, "adapter_column": "q"}, ConfigError, "needs model.adapters"),
        ({"adapter_column": "whom"}, (ConfigError, InputError), "'whom' is no column of the input"),
        ({"adapter_column": "n"}, (ConfigError, InputError), "must be a string"),
        ({"adapters": {"a b": "x"}, "adapter": "a b"}, ConfigError, "model.adapters"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(folders, tmp_path, change, error, words):
    with pytest.raises(error) as refused:
        api.validate(pipeline(tmp_path, [{"q": "a", "n": 1}], change.pop("adapters", folders), **change))
    assert words in str(refused.value) and not (tmp_path / "run").exists()


def test_an_adapter_of_another_model_is_refused(tmp_path):
    folder = tiny_adapters.save_adapter(tmp_path / "a", 0, r".*\.(c_attn|c_fc)", model="gpt2")
    with pytest.raises(ModelError, match="for another model: this one has no layer"):
        api.validate(pipeline(tmp_path, [{"q": "a"}], {"a": str(folder)}, adapter="a"))
