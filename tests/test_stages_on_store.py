"""A run of stages whose run directory is on an object store: the server dies in each stage, and another machine goes on."""

import shutil

import pytest
import tiny_runs
from s3_server import BUCKET, serving
from test_stages import ANSWER, JUDGE, finished, output, pipeline

from batchpaged import api
from batchpaged.errors import UnfinishedError
from batchpaged.run import store_lock, stored
from batchpaged.run.store import Store

URL = f"s3://{BUCKET}/runs/staged"
ENGINE = {"kv_cache": 300, "max_sequences": 4, "device": "cpu"}
SAID = ["id", "answer", "completion"]


@pytest.fixture(scope="module")
def server():
    with serving() as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_lock, "SETTLE_SECONDS", 0.1)
        patch.setenv("BATCHPAGED_CACHE", str(tiny_runs.new_path("cache")))
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield server


def on_store():
    return pipeline(tiny_runs.new_path("none"), engine=ENGINE, output={"path": URL})


def die(server, name):
    """A sitting that the server's death ends, right before a file of this name is sent. -> names on the server then"""
    put = Store.put

    def dying(store, own_name, path):
        if f"{store.name}/{own_name}".startswith(f"{URL}/{name}") and server.is_up:
            server.kill()
        return put(store, own_name, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "put", dying)
        with pytest.raises(UnfinishedError, match="AWS Error NETWORK_CONNECTION"):
            api.run(on_store())
    names = server.names("runs/staged")
    server.start()
    return names


@pytest.fixture(scope="module")
def story(server):
    """-> names on the server after each death, the state then; the result of the last sitting. Each is on another machine."""
    deaths = {}
    for name in ("stages/answer/output/", "stages/judge/units/"):
        deaths[name] = die(server, name), api.status(URL)
        shutil.rmtree(stored.working_copy(URL))
    return deaths, api.run(on_store())


def test_a_stage_counts_as_begun_and_done_by_what_is_on_the_store(story):
    (answering, first), (judging, second) = story[0].values()
    assert any(name.startswith("stages/answer/units/") for name in answering)
    assert not any(name.startswith("stages/judge/") for name in answering)
    assert {"stages/answer/report.json", "stages/answer/output/_SUCCESS", "stages/judge/plan.json"} <= set(judging)
    assert "output/_SUCCESS" not in judging and "report.json" not in judging
    assert 0 < first.num_units_done == second.num_units_done
    assert [stage.state for stage in second.stages] == ["done", "interrupted"]


def test_the_completions_are_those_of_a_run_on_a_disk(story, tmp_path, server):
    result = story[1]
    assert output(result.run_dir / "output", SAID).equals(output(finished().run_dir / "output", SAID))
    assert result.report["evaluation"] == finished().report["evaluation"]
    assert {"output/_SUCCESS", "report.json", "stages/judge/report.html"} <= set(server.names("runs/staged"))
    assert api.status(URL).state == "done"


def test_what_is_on_the_store_is_not_computed_again(story):
    """One engine has computed all of the first stage, though it died before the results were there."""
    answer = story[1].report["stages"]["answer"]
    assert answer["rows"]["total"] == tiny_runs.NUM_ROWS and len(answer["workers"]) == 1


def test_fresh_leaves_nothing_of_the_stages_before(story, server):
    other = {**on_store(), "stages": [{**ANSWER, "name": "first"}, {**JUDGE, "prompt": {"user": "{{ first }}"}}]}
    api.run(other, fresh=True)
    assert not any(name.startswith("stages/answer/") for name in server.names("runs/staged"))
