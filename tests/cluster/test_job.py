"""A job knows whether its run directory is still its own."""

import pytest

from batchpaged.cluster.job import Job
from batchpaged.errors import UnfinishedError
from batchpaged.run.directory import RunDirectory

IDENTITY = {"pipeline": {}, "model": "m", "input": []}


def job_of(directory, run_id):
    return Job(None, None, None, run_id, "sitting", str(directory.path), 1, 1)


def test_a_directory_that_was_given_to_another_run_is_noticed(tmp_path, monkeypatch):
    directory = RunDirectory(tmp_path / "run")
    with directory.lock():
        job = job_of(directory, directory.open("a", IDENTITY, fresh=False)["run_id"])
        job.check_is_current()
        monkeypatch.setattr(RunDirectory, "info", None)  # not read a second time
        job.check_is_current()
        monkeypatch.undo()
        directory.open("a", IDENTITY, fresh=True)
        with pytest.raises(UnfinishedError, match="holds another run by now"):
            job.check_is_current()
    (tmp_path / "run" / "run.json").unlink()
    with pytest.raises(UnfinishedError, match="holds another run by now"):
        job.check_is_current()
