"""A run whose input and run directory are on an object store: the server dies at every stage, and the machine is another one."""

import re
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq
import pytest
import tiny_runs
import yaml
from click.testing import CliRunner
from s3_server import BUCKET, serving

from batchpaged import api
from batchpaged.cli import cli
from batchpaged.cluster import graph
from batchpaged.errors import InputError, RunDirectoryError
from batchpaged.run import store_lock, stored
from batchpaged.run.store import Store

URL = f"s3://{BUCKET}/runs/night"
SECRETS = ("a-secret-key-of-the-tests", "tester")


@pytest.fixture(scope="module")
def server():
    with serving() as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_lock, "SETTLE_SECONDS", 0.1)
        patch.setattr(store_lock, "RENEW_SECONDS", 0.05)  # renewals meet the dead server too
        patch.setenv("BATCHPAGED_CACHE", str(tiny_runs.new_path("cache")))
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        for path in tiny_runs.data().iterdir():
            upload(server, path)
        yield server


def upload(server, path):
    with server.look().open_output_stream(f"{BUCKET}/input/{path.name}") as stream:
        stream.write(path.read_bytes())


def pipeline(run_dir=URL):
    sampling = {"max_tokens": 5, "ignore_eos": True, "temperature": 1.0}
    engine = {"kv_cache": 300, "max_sequences": 4, "device": "cpu", "batch_invariant": True}
    made = tiny_runs.pipeline(run_dir, sampling=sampling, engine=engine)
    return {**made, "input": {"path": f"s3://{BUCKET}/input/*.parquet", "id_column": "id"}}


def command(folder, *words):
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(pipeline()))
    return CliRunner().invoke(cli, [*words, str(folder / "pipeline.yaml")])


@dataclass(frozen=True)
class Death:
    """The server dies right before this call, which then finds nobody: no clock decides what it is that fails."""

    owner: Any
    function: str
    is_time: Callable[..., bool]  # of the call's arguments, and of the names on the server as `there`
    message: str  # what follows the bucket: the offender, and what could not be done with it

    def sitting(self, server, folder):
        original, one_at_a_time = getattr(self.owner, self.function), threading.Lock()

        def dying(*args, **options):
            with one_at_a_time:
                if server.is_up and self.is_time(*args, **options, there=server.names("runs/night")):
                    server.kill()
                return original(*args, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.owner, self.function, dying)
            ended = command(folder, "run")
        assert not server.is_up, f"nobody called {self.function}: {ended.output}"
        names = server.names("runs/night")
        server.start()
        return ended, names


def sends(prefix):
    return lambda store, name, path, there: name.startswith(prefix)


def sends_a_third_unit(store, name, path, there):
    return name.startswith("units/") and sum(other.startswith("units/") for other in there) >= 2


def always(*args, **options):
    return True


UNREADABLE_INPUT = r"/input/[bcd]\.parquet cannot be read"
DEATHS = {
    "beginning": Death(Store, "put", sends("run.json"), "/runs/night: run.json cannot be written"),
    "reading": Death(graph, "_plan", always, UNREADABLE_INPUT),
    "planned": Death(Store, "put", sends("plan/"), r"/runs/night: plan/\S+ cannot be written"),
    "in the middle": Death(Store, "put", sends_a_third_unit, r"/runs/night: units/unit-\d+\.parquet cannot be written"),
    "computed": Death(graph, "assemble", always, UNREADABLE_INPUT),
    "reported": Death(stored._StoreKeeper, "keep_results", always, "/runs/night: run.json cannot be read"),
    "sending results": Death(Store, "put", sends("output/"), r"/runs/night: output/\S+ cannot be written"),
    "sending the rest": Death(Store, "put", sends("report.html"), r"/runs/night: report\.html cannot be written"),
    "ending": Death(Store, "put", sends("report.json"), r"/runs/night: report\.json cannot be written"),
}
NOTHING_COMPUTED = ("beginning", "reading", "planned")
MACHINE_LOST = ("in the middle", "sending the rest")  # another one goes on


@pytest.fixture(scope="module")
def story(server):
    """-> sittings that the server's death ended, with names on the server then; the last one, on another machine; folder."""
    folder = tiny_runs.new_path("story")
    folder.mkdir()
    deaths = {}
    for name, death in DEATHS.items():
        deaths[name] = death.sitting(server, folder)
        if name in MACHINE_LOST:
            shutil.rmtree(stored.working_copy(URL))
    return deaths, command(folder, "run"), folder


@pytest.mark.parametrize("name", DEATHS)
def test_a_server_that_dies_ends_the_run_with_a_clear_message(story, name):
    ended = story[0][name][0]
    assert ended.exit_code == 3
    message, *hint = ended.output[ended.output.index("error:"):].splitlines()
    assert re.fullmatch(rf"error: s3://{BUCKET}{DEATHS[name].message}: .*AWS Error NETWORK_CONNECTION .*", message)
    kept = "" if name in NOTHING_COMPUTED else "Finished units are kept. "
    assert hint == [f"{kept}To go on:", f"  batchpaged run {story[2] / 'pipeline.yaml'}"]
    assert "Traceback" not in ended.output


def test_no_output_shows_a_credential(story):
    outputs = [*(ended.output for ended, _ in story[0].values()), story[1].output]
    assert not any(secret in output for output in outputs for secret in SECRETS)


def test_what_was_committed_is_on_the_store_and_goes_on_from_another_machine(story):
    names = story[0]["in the middle"][1]
    assert sum(name.startswith("units/") for name in names) == 2 and "plan.json" in names
    assert "2 of " in story[0]["computed"][0].output and "units are finished already" in story[0]["computed"][0].output
    assert story[1].exit_code in (0, 1), story[1].output
    assert f"{URL}/report.html" in story[1].output


def test_a_store_has_a_report_only_of_a_whole_output(story):
    """Readers wait for output/_SUCCESS; whether a run is finished, report.json says."""
    for _, names in story[0].values():
        assert "report.json" not in names
        assert "output/_SUCCESS" not in names or sum(name.startswith("output/") for name in names) == 1 + len(tiny_runs.SHARDS)


def test_nothing_is_lost_or_doubled_and_the_lock_is_gone(story, server):
    local = api.run({**pipeline(tiny_runs.new_path("local"))})
    assert store_lock.LOCK_FILE not in server.names("runs/night")
    for path in (local.run_dir / "output").glob("*.parquet"):
        stored_rows = pq.read_table(f"{BUCKET}/runs/night/output/{path.name}", filesystem=server.look())
        columns = ["cached_tokens"]
        assert stored_rows.drop(columns).equals(pq.read_table(path).drop(columns))
    assert {"output/_SUCCESS", "report.json", "report.html", "metrics.prom"} <= set(server.names("runs/night"))


def test_a_finished_run_is_known_on_any_machine(story):
    folder = story[2]
    assert api.status(URL).state == "done"
    shutil.rmtree(stored.working_copy(URL))
    again = command(folder, "run")
    assert f"{URL} is finished already" in again.output and again.exit_code == story[1].exit_code


def test_a_run_of_something_else_is_refused_and_fresh_starts_over(story, server):
    before = server.names("runs/night")
    with pytest.raises(RunDirectoryError, match="of something else"):
        api.run(pipeline() | {"sampling": {"max_tokens": 1}})
    assert server.names("runs/night") == before
    api.run(pipeline() | {"sampling": {"max_tokens": 1}}, fresh=True)
    assert len([name for name in server.names("runs/night") if name.startswith("sittings/")]) == 1
    assert api.status(URL).state == "done"


def test_somebody_elses_folder_is_refused(server):
    with pytest.raises(RunDirectoryError, match=r"holds other files \(a.parquet, b.parquet, c.parquet\) and no run"):
        api.run(pipeline(f"s3://{BUCKET}/input"))
    assert store_lock.LOCK_FILE not in server.names("input")


def test_a_run_directory_that_does_not_answer_is_refused_before_any_work(server):
    server.kill()
    try:
        with pytest.raises(RunDirectoryError, match="cannot be listed"):
            api.run(tiny_runs.pipeline(URL))
        with pytest.raises(RunDirectoryError, match="cannot be"):
            api.status(URL)
        with pytest.raises(InputError, match="AWS Error NETWORK_CONNECTION"):
            api.run(pipeline())
    finally:
        server.start()
