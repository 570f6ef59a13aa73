"""A command run from another folder than the pipeline file's: what is said of paths that would be right there."""

import pytest

from batchpaged import api
from batchpaged.config.elsewhere import hinting
from batchpaged.errors import InputError, ModelError, RefusedError

PIPELINE = """\
input: {path: "data/*.parquet"}
model: {id: hub/model, adapters: {legal: adapters/legal}, adapter: legal}
stages:
  - {name: a, prompt: {user: x, chat_template: chat.jinja}}
output: {path: runs/x}
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A pipeline file with all that it names beside it; the current folder is another."""
    folder, other = tmp_path / "project", tmp_path / "other"
    for path in (folder / "data", folder / "adapters" / "legal", other):
        path.mkdir(parents=True)
    (folder / "data" / "a.parquet").write_bytes(b"")
    (folder / "chat.jinja").write_text("{{ messages }}")
    (folder / "rag.yaml").write_text(PIPELINE)
    monkeypatch.chdir(other)
    return folder


def refused(pipeline, error=InputError("wrong", "and wrong")):
    with pytest.raises(type(error)) as found, hinting(pipeline):
        raise error
    return str(found.value).splitlines()


def test_paths_that_are_beside_the_pipeline_file_are_named(project):
    lines = refused(project / "rag.yaml")
    assert lines[:2] == ["wrong", "and wrong"] and len(lines) == 5
    assert lines[2].startswith(f"input.path: data/*.parquet is in {project}, ") and lines[2].endswith("give ../project/data/*.parquet")
    assert [line.partition(":")[0] for line in lines[3:]] == ["model.adapters", "stages[0].prompt.chat_template"]


def test_paths_that_are_in_the_current_folder_are_not(project, tmp_path, monkeypatch):
    (project / "data").rename(tmp_path / "other" / "data")
    assert "input.path" not in "".join(refused("../project/rag.yaml", ModelError("gone")))
    monkeypatch.chdir(project)
    assert refused("rag.yaml") == ["wrong", "and wrong"]


def test_paths_given_on_the_command_line_count(project):
    with pytest.raises(InputError) as found, hinting(project / "rag.yaml", ["input.path=chat.jinja"]):
        raise InputError("wrong")
    assert str(found.value).splitlines()[1].startswith(f"input.path: chat.jinja is in {project}, ")


def test_what_has_no_folder_or_is_no_pipeline_gets_no_hint(project):
    (project / "bad.yaml").write_text("{")
    for pipeline in ({"input": {"path": "data"}}, project / "bad.yaml", project / "none.yaml"):
        assert refused(pipeline) == ["wrong", "and wrong"]


def test_a_refused_pipeline_is_explained(project):
    (project / "rag.yaml").write_text("input: {path: data}\nprompt: {user: x}\nmodel: {id: m}\noutput: {path: o}\n")
    with pytest.raises(RefusedError, match="does not exist.*\n.*run the command there, or give ../project/data"):
        api.validate(project / "rag.yaml")
