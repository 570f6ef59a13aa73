"""compare, history, clean and gates on change where runs lie on an object store."""

import json

import pytest
from click.testing import CliRunner
from past.pastruns import make_run, make_unfinished, row
from s3_server import BUCKET, serving

from batchpaged import api
from batchpaged.cli import cli
from batchpaged.config import parse_pipeline
from batchpaged.errors import RunDirectoryError
from batchpaged.past.clean import DELETED_MARK
from batchpaged.past.previous import previous_report
from batchpaged.run import store_lock, stored
from batchpaged.run.directory import RunDirectory
from batchpaged.run.store import open_store

DAYS = ("day-1", "day-2", "day-3")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving() as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_lock, "SETTLE_SECONDS", 0.05)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("BATCHPAGED_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield server


@pytest.fixture
def url(server, tmp_path, request):
    """Three nights, the second one failed, and an unfinished one; -> their folder."""
    local = tmp_path / "runs"
    for day in (1, 2, 3):
        gates = ("failed_rows <= 0",) if day == 2 else ()
        make_run(local / f"day-{day}", day, gates=gates, rows=[row("a", "x"), row("b", f"y{day}"), row("c", None)])
    make_unfinished(local / "day-4", 4)
    url = f"s3://{BUCKET}/{request.node.name.partition('[')[0]}"
    store = open_store(url)
    for path in (path for path in local.rglob("*") if path.is_file() and path.name != "lock"):
        store.put(str(path.relative_to(local)), path)
    return url


def names(server, url):
    return server.names(url.removeprefix(f"s3://{BUCKET}/"))


def run(*words):
    return CliRunner().invoke(cli, [str(word) for word in words])


def test_history_is_that_of_the_folder(url, tmp_path):
    records = api.history(url, html=tmp_path / "page.html")
    assert records == api.history(tmp_path / "runs")
    assert [record["run"] for record in records] == [*DAYS, "day-4"]
    assert "href" not in (tmp_path / "page.html").read_text().partition("<body")[2]
    assert [line["run"] for line in json.loads(run("history", url, "--last", 2, "--json").output)["runs"]] == ["day-3", "day-4"]


def test_a_folder_without_runs_and_a_bucket_that_is_not_there(server):
    assert "holds no run directories" in run("history", f"s3://{BUCKET}/none").output
    result = run("history", "s3://no-such-bucket/runs")
    assert result.exit_code == 2 and "no-such-bucket" in result.output and "Traceback" not in result.output


@pytest.mark.parametrize("inside", ["", "/", "/output", "/report.json"])
def test_compare_is_that_of_the_folders(url, tmp_path, inside):
    runs = [place + inside for place in (f"{url}/day-1", f"{url}/day-3")]
    found = api.compare(*runs, with_text=True).result
    expected = api.compare(tmp_path / "runs/day-1", tmp_path / "runs/day-3", with_text=True).result
    assert found["a"].pop("path") == runs[0].rstrip("/") and expected["a"].pop("path")
    assert found["b"].pop("path") and expected["b"].pop("path")
    assert found == expected
    assert found["rows"]["changed"] == 1 and found["texts"]["b"] == {"a": "y1", "b": "y3"}


def test_a_run_directory_called_output_is_one(url, tmp_path):
    store, run_dir = open_store(f"{url}/output"), tmp_path / "runs/day-1"
    for path in (path for path in run_dir.rglob("*") if path.is_file()):
        store.put(str(path.relative_to(run_dir)), path)
    assert api.compare(f"{url}/output", f"{url}/day-3").result["rows"]["changed"] == 1


def test_a_store_is_compared_with_a_folder(url, tmp_path):
    result = run("compare", tmp_path / "runs/day-1", f"{url}/day-1", "--fail-on-change")
    assert result.exit_code == 0, result.output
    lost = run("compare", tmp_path / "runs/day-1", f"{url}/day-9")
    assert lost.exit_code == 2 and f"{url}/day-9 is neither a run directory nor" in lost.output


def test_clean_shows_and_then_deletes(server, url):
    shown = run("clean", url, "--keep", 1)
    assert shown.exit_code == 0 and "nothing was deleted" in shown.output and f"{url}/day-1 " in shown.output
    assert any(name.startswith("day-1/") for name in names(server, url))
    copy = stored.working_copy(f"{url}/day-1")
    copy.mkdir(parents=True)
    assert run("clean", url, "--keep", 1, "--yes").exit_code == 0
    left = {name.split("/")[0] for name in names(server, url)}
    assert left == {"day-3", "day-4"} and not copy.exists()  # the last good one stays


def test_results_are_kept_if_asked(server, url):
    assert run("clean", url, "--older-than", "1d", "--keep-results", "--yes").exit_code == 0
    left = {name.partition("/")[2] for name in names(server, url) if name.startswith("day-1/")}
    assert left == {"run.json", "report.json", "output/_SUCCESS", "output/a.parquet", "output/b.parquet"}


def test_locked_runs_and_those_with_other_files_stay(server, url):
    store = open_store(url)
    store.write("day-1/owner.json", b"{}")
    store.write("day-2/notes.txt", b"mine")
    before = names(server, url)
    shown = run("clean", url, "--keep", 1, "--older-than", "1d", "--yes").output
    assert names(server, url) == before
    assert "at work" in shown and "holds what no run writes: notes.txt" in shown


def test_a_deletion_that_was_interrupted_is_finished(server, url, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("batchpaged.run.store.Store.delete_all", interrupted)
        with pytest.raises(KeyboardInterrupt):
            api.clean(url, min_age=86400, delete=True)
    assert f"day-1/{DELETED_MARK}" in names(server, url) and "day-1/run.json" not in names(server, url)
    with pytest.raises(RunDirectoryError, match="holds other files"), stored.opening(f"{url}/day-1", print):
        pass
    api.clean(url, min_age=86400, delete=True)
    assert not any(name.startswith("day-1/") for name in names(server, url))


def interrupted(store):
    raise KeyboardInterrupt


def test_gates_compare_with_the_last_good_run_of_the_store(url, tmp_path):
    """The working copy of this run lies alone."""
    directory = RunDirectory(make_run(tmp_path / "copy", 20))
    sections = {"input": {"path": "x"}, "prompt": {"text_column": "t"}, "model": {"id": "m"}, "output": {"path": "x"}}
    pipeline = parse_pipeline({**sections, "gates": ["f1 >= previous"]})
    report = previous_report(pipeline, directory, f"{url}/day-20")
    assert report["run"]["id"] == "rag_eval-03"
    assert (directory.path / "previous.json").exists()
    named = pipeline.model_copy(update={"previous": f"{url}/day-1"})
    assert previous_report(named, directory, f"{url}/day-20")["run"]["id"] == "rag_eval-01"
