"""Dask may run any task again, also while the first one is still running: every unit twice, at the same time and afterwards."""

import tiny_runs

from batchpaged import api
from batchpaged.cluster import engines
from batchpaged.cluster.infer_tasks import infer_unit
from batchpaged.cluster.inference import Inference

COLUMNS = ["id", "completion", "finish_reason", "completion_tokens", "status", "error"]


def test_units_that_are_computed_twice_are_in_the_output_once(monkeypatch):
    expected = tiny_runs.output(tiny_runs.finished_run().run_dir, COLUMNS)
    again = []
    submit, take_in = Inference._submit, Inference._take_in

    def submit_twice(self, unit, address):
        future = submit(self, unit, address)
        again.append(submit_again(self, unit, address, "at-once"))
        return future

    def take_in_and_submit(self):
        before = dict(self._running)
        take_in(self)
        for future in before.keys() - self._running.keys():
            again.append(submit_again(self, before[future], next(iter(self._sent)), "afterwards"))

    def submit_again(self, unit, address, when):
        key = f"{when}-{self._job.sitting}-{unit}"
        return self._client.submit(infer_unit, self._job_future, unit, self._num_units, None, key=key, workers=[address])

    monkeypatch.setattr(Inference, "_submit", submit_twice)
    monkeypatch.setattr(Inference, "_take_in", take_in_and_submit)
    monkeypatch.setattr(engines, "_stop", lambda *_: [future.result() for future in again])
    run_dir = tiny_runs.new_path("twice")
    result = api.run(tiny_runs.pipeline(run_dir))
    assert len(again) == 2 * len(list((run_dir / "units").iterdir()))
    assert result.report["rows"]["total"] == tiny_runs.NUM_ROWS
    assert tiny_runs.output(run_dir, COLUMNS).equals(expected)
