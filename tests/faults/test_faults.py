"""The short version of run_all.py: one run, killed in every stage, that comes to what an undisturbed run comes to."""

import pytest
import tiny_runs
from faults.faulty_runs import FaultyRun, Starter, make_pipeline
from faults.points import STAGES, Fault, choose_chains, stage_of

from batchpaged import api

KILLS = (
    Fault("rename prompts", 2, is_after=False),
    Fault("rename plan.json", 1, is_after=False),
    Fault("Engine.step", 9, is_after=True),
    Fault("rename units", 2, is_after=False),
    Fault("rename output", 1, is_after=False),
)


@pytest.fixture(scope="module")
def pipeline():
    folder = tiny_runs.new_path("faults-data")
    folder.mkdir()
    return make_pipeline(folder, tiny_runs.model())


@pytest.fixture(scope="module")
def undisturbed(pipeline):
    with Starter() as starter:
        yield _undisturbed(pipeline, starter)


def _undisturbed(pipeline, starter):
    run = FaultyRun(tiny_runs.new_path("faults-undisturbed"), pipeline, starter)
    api.run({**pipeline, "cluster": {"scheduler": tiny_runs.cluster().scheduler_address}}, run_dir=run.run_dir)
    return run


def test_a_run_that_is_killed_in_every_stage_comes_to_the_same(pipeline, undisturbed):
    run = FaultyRun(tiny_runs.new_path("faults"), pipeline, undisturbed.starter)
    for fault in KILLS:
        before = run.unit_times()
        sitting = run.sit(fault)
        assert sitting.is_reached, f"{fault}: {sitting.text}"
        assert before.items() <= run.unit_times().items()  # finished units stay as they are
    assert run.sit().exit_code == 0
    assert run.content() == undisturbed.content() and run.leftovers() == []


def test_the_faults_of_the_long_version_differ_and_cover_every_stage():
    counts = {fault.point: 30 for fault in KILLS} | {"RunDirectory.open": 1, "rename run.json": 1, "write_json": 9}
    chains = choose_chains(counts, 3, seed=0)
    faults = [fault for chain in chains for fault in chain]
    assert len({(f.point, f.call, f.is_after) for f in faults}) == len(faults) == 21
    assert [stage_of(fault.point) for fault in chains[0]] == sorted(
        (stage_of(fault.point) for fault in chains[0]), key=list(STAGES).index
    )
    assert chains == choose_chains(counts, 3, seed=0) != choose_chains(counts, 3, seed=1)
