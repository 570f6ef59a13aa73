"""A run whose input and run directory are on an object store: the server dies in the middle, and the machine is another one."""

import shutil
import threading
import time

import pyarrow.parquet as pq
import pytest
import tiny_runs
import yaml
from click.testing import CliRunner
from s3_server import BUCKET, serving

from batchpaged import api
from batchpaged.cli import cli
from batchpaged.errors import InputError, RunDirectoryError
from batchpaged.run import store_lock, stored

URL = f"s3://{BUCKET}/runs/night"
SECRETS = ("a-secret-key-of-the-tests", "tester")


@pytest.fixture(scope="module")
def server():
    with serving() as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_lock, "SETTLE_SECONDS", 0.1)
        patch.setenv("BATCHPAGED_CACHE", str(tiny_runs.new_path("cache")))
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        for path in tiny_runs.data().iterdir():
            upload(server, path)
        yield server


def upload(server, path):
    with server.look().open_output_stream(f"{BUCKET}/input/{path.name}") as stream:
        stream.write(path.read_bytes())


def pipeline(run_dir=URL):
    sampling = {"max_tokens": 40, "ignore_eos": True, "temperature": 1.0}  # units that take a while
    engine = {"kv_cache": 300, "max_sequences": 4, "device": "cpu", "batch_invariant": True}
    made = tiny_runs.pipeline(run_dir, sampling=sampling, engine=engine)
    return {**made, "input": {"path": f"s3://{BUCKET}/input/*.parquet", "id_column": "id"}}


def command(folder, *words):
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(pipeline()))
    return CliRunner().invoke(cli, [*words, str(folder / "pipeline.yaml")])


@pytest.fixture(scope="module")
def story(server):
    """-> the sitting that the server's death ended, names on the server then, and the sitting on another machine."""
    folder = tiny_runs.new_path("story")
    folder.mkdir()
    killer = threading.Thread(target=kill_in_the_middle, args=(server,))
    killer.start()
    first = command(folder, "run")
    killer.join()
    names = server.names("runs/night")
    server.start()
    shutil.rmtree(stored.working_copy(URL))
    return first, names, command(folder, "run"), folder


def kill_in_the_middle(server):
    end = time.monotonic() + 60
    while sum(name.startswith("units/") for name in server.names("runs/night")) < 2 and time.monotonic() < end:
        time.sleep(0.02)
    server.kill()


def test_a_server_that_dies_ends_the_run_with_a_clear_message(story):
    first = story[0]
    assert first.exit_code == 3
    assert f"error: {URL}: units/unit-" in first.output and "cannot be written" in first.output
    assert "Finished units are kept. To go on:" in first.output
    assert "Traceback" not in first.output


def test_no_output_shows_a_credential(story):
    assert not any(secret in sitting.output for sitting in (story[0], story[2]) for secret in SECRETS)


def test_what_was_committed_is_on_the_store_and_goes_on_from_another_machine(story, server):
    _, names, second, _ = story
    num_kept = sum(name.startswith("units/") for name in names)
    assert num_kept >= 2 and "plan.json" in names and not any(name.startswith("output") for name in names)
    assert second.exit_code in (0, 1), second.output
    assert f"{num_kept} of " in second.output and "units are finished already" in second.output
    assert f"{URL}/report.html" in second.output


def test_nothing_is_lost_or_doubled_and_the_lock_is_gone(story, server):
    local = api.run({**pipeline(tiny_runs.new_path("local"))})
    assert store_lock.LOCK_FILE not in server.names("runs/night")
    for path in (local.run_dir / "output").glob("*.parquet"):
        stored_rows = pq.read_table(f"{BUCKET}/runs/night/output/{path.name}", filesystem=server.look())
        columns = ["cached_tokens"]
        assert stored_rows.drop(columns).equals(pq.read_table(path).drop(columns))
    assert {"output/_SUCCESS", "report.json", "report.html", "metrics.prom"} <= set(server.names("runs/night"))


def test_a_finished_run_is_known_on_any_machine(story):
    folder = story[3]
    assert api.status(URL).state == "done"
    shutil.rmtree(stored.working_copy(URL))
    again = command(folder, "run")
    assert f"{URL} is finished already" in again.output and again.exit_code == story[2].exit_code


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
