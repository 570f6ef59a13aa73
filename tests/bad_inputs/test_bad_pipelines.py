"""Pipeline files through the command line, as a user meets them: exit code 2, a reason in words, nothing written."""

import inspect

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_runs
import yaml
from bad_inputs.bad_pipelines import FILES, GOOD, SECTIONS
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchpaged.cli import cli
from batchpaged.config.schema import all_keys


@pytest.fixture(scope="module")
def folder():
    made = tiny_runs.new_path("pipelines")
    made.mkdir()
    pq.write_table(pa.table({"id": ["a"], "question": ["What?"]}), made / "rows.parquet")
    return made


@pytest.fixture
def validate(folder):
    """Runs `batchpaged validate` on a file's content. -> exit code, what went to stderr"""
    has_choice = "mix_stderr" in inspect.signature(CliRunner).parameters  # until click 8.1; they are apart since
    runner = CliRunner(mix_stderr=False) if has_choice else CliRunner()

    def run(content, *options):
        content = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
        for mark, path in (("DATA", folder / "rows.parquet"), ("MODEL", tiny_runs.model()), ("OUT", folder / "run")):
            content = content.replace(mark.encode(), str(path).encode())
        (folder / "rag.yaml").write_bytes(content)
        outcome = runner.invoke(cli, ["validate", str(folder / "rag.yaml"), *options])
        assert outcome.exception is None or isinstance(outcome.exception, SystemExit), outcome.exception
        assert "This is a bug in batchpaged" not in outcome.stderr, outcome.stderr
        assert not (folder / "run").exists()
        return outcome.exit_code, outcome.stderr

    return run


def test_the_good_file_is_good(validate):
    assert validate(GOOD) == (0, "")


@pytest.mark.parametrize("name", FILES)
def test_a_bad_pipeline_is_refused_with_its_reason(validate, name, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")  # with it a CPU runs Triton's kernels
    content, words = FILES[name]
    exit_code, said = validate(content)
    assert exit_code == 2 and said.startswith("error: ")
    assert not [word for word in words if word not in said], said


# --- any file: an answer in words, whatever is in it ---

words = st.sampled_from(["auto", "DATA", "MODEL", "2GiB", "f1 > 0.5", "{{ question }}", "{{", "id", "question", "none"])
leaves = words | st.none() | st.booleans() | st.integers(-3, 3000) | st.floats() | st.text(max_size=6)
values = leaves | st.lists(leaves, max_size=3) | st.dictionaries(words | st.text(max_size=4), leaves, max_size=3)
changes = st.lists(st.tuples(st.sampled_from(sorted(all_keys())), values), min_size=1, max_size=4)
many = settings(max_examples=120, suppress_health_check=list(HealthCheck))


@many
@given(changes)
def test_any_values(validate, changes):
    """A good pipeline with a few values exchanged: most get past the first checks."""
    content = {name: yaml.safe_load(text) for name, text in SECTIONS.items()}
    for key, value in changes:
        section, _, name = key.partition(".")
        if not name:
            content[section] = value
        elif isinstance(content.setdefault(section, {}), dict):
            content[section][name] = value
    content["output"] = {"path": "OUT"}
    exit_code, said = validate(yaml.safe_dump(content))
    assert (exit_code, said) == (0, "") or (exit_code == 2 and said.startswith("error: "))


@many
@given(st.integers(0, len(GOOD)), st.integers(0, 12), st.text(max_size=4))
def test_any_edit(validate, place, length, text):
    exit_code, said = validate(GOOD[:place] + text + GOOD[place + length :])
    assert exit_code == 0 or (exit_code == 2 and said.startswith("error: "))


@many
@given(st.sampled_from(sorted(all_keys())), leaves.map(str))
def test_any_override(validate, key, value):
    exit_code, said = validate(GOOD, f"--set={key}={value}", "--set=output.path=OUT")
    assert exit_code == 0 or (exit_code == 2 and said.startswith("error: "))
