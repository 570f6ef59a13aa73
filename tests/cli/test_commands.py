"""The commands over a stand-in for api.py: what they pass on, print, and exit with."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli.fake_api import invoke

from batchpaged import errors
from batchpaged.cli.commands import cli, resume_command

PIPELINE = """\
input: {path: rows.parquet}
prompt: {text_column: text}
model: {id: m}
output: {path: runs/from_file}
"""


def result(exit_code=0):
    return SimpleNamespace(report={"run": {"name": "rag"}}, run_dir=Path("runs/x"), location="s3://x", exit_code=exit_code)


@pytest.mark.parametrize("exit_code", [0, 1])
def test_run_prints_the_summary_and_ends_with_the_runs_code(api, exit_code):
    api.answers["run"] = result(exit_code)
    outcome = invoke("run", "rag.yaml")
    assert outcome.exit_code == exit_code
    assert outcome.stdout.strip() == "summary of rag in runs/x, s3://x"


def test_run_passes_everything_on(api):
    api.answers["run"] = result()
    overrides = ("a.b=1", "c=x y")
    invoke("run", "rag.yaml", "--set", overrides[0], "--set", overrides[1], "--limit", 5, "--run-dir", "d", "--fresh")
    [(_, args, kwargs)] = api.calls
    assert args == (Path("rag.yaml"),)
    assert kwargs.pop("reporter") is not None and not kwargs.pop("stop").is_set
    assert kwargs == dict(overrides=overrides, limit=5, run_dir="d", fresh=True, retry_failed=False)


def test_retry_failed_is_passed_on_and_never_with_fresh(api):
    api.answers["run"] = result()
    assert invoke("run", "rag.yaml", "--retry-failed").exit_code == 0
    assert api.calls[0][2]["retry_failed"] is True
    outcome = invoke("run", "rag.yaml", "--retry-failed", "--fresh")
    assert outcome.exit_code == 2 and "give one of them" in outcome.stderr and len(api.calls) == 1


def test_progress_goes_to_stderr(api):
    def run(*args, reporter, **kwargs):
        reporter.note("half way")
        return result()

    api.answers["run"] = run
    outcome = invoke("run", "rag.yaml")
    assert "half way" in outcome.stderr and "half way" not in outcome.stdout


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (errors.ConfigError("rag.yaml: wrong"), 2),
        (errors.InputError("wrong"), 2),
        (errors.ModelError("wrong"), 2),
        (errors.RunDirectoryError("wrong"), 2),
        (errors.ClusterError("wrong"), 2),
        (errors.UnfinishedError("wrong"), 3),
    ],
)
def test_errors_are_one_message_and_a_code(api, error, exit_code):
    api.answers["run"] = error
    outcome = invoke("run", "rag.yaml", "--fresh")
    assert outcome.exit_code == exit_code
    assert outcome.stderr.startswith(f"error: {error}\n") and outcome.stdout == ""
    assert "Traceback" not in outcome.stderr
    assert ("  batchpaged run rag.yaml\n" in outcome.stderr) == (exit_code == 3)


@pytest.mark.parametrize(
    ("place", "words"), [("units", "Finished units are kept. "), ("stages/a/units", "Finished units are kept. "), ("plan", "")]
)
def test_an_interrupted_run_says_how_to_go_on_and_what_is_kept_if_anything_is(api, tmp_path, monkeypatch, place, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d" / place).mkdir(parents=True)
    (tmp_path / "d" / place / "unit-000000.parquet").touch()
    api.answers["run"] = KeyboardInterrupt()
    outcome = invoke("run", "my rag.yaml", "--set", "a.b=[1, 2]", "--limit", 5, "--run-dir", "d", "--fresh")
    assert outcome.exit_code == 3
    assert outcome.stderr.splitlines() == [
        "interrupted",
        f"{words}To go on:",
        "  batchpaged run 'my rag.yaml' --set 'a.b=[1, 2]' --limit 5 --run-dir d",
    ]


def test_sigterm_ends_a_run_like_an_interrupt(api):
    before = signal.getsignal(signal.SIGTERM)
    api.answers["run"] = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGTERM)
    outcome = invoke("run", "rag.yaml")
    assert outcome.exit_code == 3 and outcome.stderr.startswith("interrupted\n")
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_a_run_at_work_to_stop_and_the_second_one_stops_it(api, number):
    seen = []

    def run(*args, stop, **kwargs):
        with stop.heeded():
            for _ in range(2):
                os.kill(os.getpid(), number)
                seen.append(stop.is_set)

    api.answers["run"] = run
    outcome = invoke("run", "rag.yaml")
    assert seen == [True] and outcome.exit_code == 3 and outcome.stderr.startswith("interrupted\n")


def test_a_run_that_stopped_as_asked_says_so_and_how_to_go_on(api):
    api.answers["run"] = errors.StoppedError("stopped as asked: 3 of 9 units are done")
    outcome = invoke("run", "rag.yaml")
    assert outcome.exit_code == 3
    assert outcome.stderr.splitlines()[0] == "stopped as asked: 3 of 9 units are done"
    assert outcome.stderr.endswith("  batchpaged run rag.yaml\n")


def test_a_signal_that_is_ignored_stays_ignored(api):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        api.answers["run"] = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGINT) or result()
        assert invoke("run", "rag.yaml").exit_code == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_all_of_stderr_is_json_on_request(api):
    def run(*args, reporter, **kwargs):
        reporter.note("half way")
        raise errors.UnfinishedError("the disk is full")

    api.answers["run"] = run
    outcome = invoke("run", "rag.yaml", "--log-format", "json")
    first, last = map(json.loads, outcome.stderr.splitlines())
    assert (first["event"], first["message"]) == ("note", "half way")
    assert (last["event"], last["message"], last["resume"]) == ("ended", "error: the disk is full", "batchpaged run rag.yaml")


def test_an_interrupted_plan_has_nothing_to_go_on_with(api):
    api.answers["plan"] = KeyboardInterrupt()
    outcome = invoke("plan", "rag.yaml")
    assert (outcome.exit_code, outcome.stderr) == (3, "interrupted\n")


def test_a_bug_is_said_to_be_one_and_shows_where_on_demand(api, monkeypatch):
    api.answers["run"] = ZeroDivisionError("division by zero")
    outcome = invoke("run", "rag.yaml")
    assert outcome.exit_code == 3
    assert outcome.stderr.startswith("error: ZeroDivisionError: division by zero\nThis is a bug in batchpaged.")
    assert "Traceback" not in outcome.stderr
    monkeypatch.setenv("BATCHPAGED_DEBUG", "1")
    assert "Traceback" in invoke("run", "rag.yaml").stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["run", "rag.yaml", "--limit", "0"],
        ["run", "rag.yaml", "--limit", "many"],
        ["run", "rag.yaml", "--frsh"],
        ["plan"],
        ["validate"],
        ["status"],
        ["bench", "--max-tokens", "0"],
        ["rnu"],
    ],
)
def test_wrong_arguments_are_refused_before_any_work(api, arguments):
    assert invoke(*arguments).exit_code == 2 and api.calls == []


def test_the_resume_command_holds_only_what_was_given():
    assert resume_command(Path("a.yaml"), (), None, None) == "batchpaged run a.yaml"


def test_the_resume_command_holds_no_secret():
    override = "input.path=https://host/x.parquet?X-Amz-Signature=S3CRET"
    assert "S3CRET" not in resume_command(Path("a.yaml"), (override, "input.path=s3://KEY:S3CRET@bucket/x"), None, None)


def test_validate_passes_everything_on_and_prints(api, lines):
    api.answers["validate"] = "a validation"
    assert invoke("validate", "rag.yaml", "--set", "a=1").stdout == "lines of ('rag.yaml', 'a validation')\n"
    assert api.calls == [("validate", (Path("rag.yaml"),), {"overrides": ("a=1",)})]


def test_validate_prints_the_schema(api):
    outcome = invoke("validate", "--schema")
    assert json.loads(outcome.stdout)["title"] == "batchpaged pipeline file" and api.calls == []


@pytest.mark.parametrize("is_file", [True, False])
def test_status_takes_a_run_directory_or_a_pipeline_file(api, lines, tmp_path, is_file):
    file = tmp_path / "rag.yaml"
    file.write_text(PIPELINE)
    api.answers["status"] = "a status"
    assert invoke("status", file if is_file else tmp_path).stdout == "lines of ('a status',)\n"
    assert api.calls == [("status", ("runs/from_file" if is_file else str(tmp_path),), {})]


def test_a_wrong_pipeline_file_given_to_status_is_refused(api, tmp_path):
    (tmp_path / "rag.yaml").write_text("inpt: {}\n")
    outcome = invoke("status", tmp_path / "rag.yaml")
    assert outcome.exit_code == 2 and "did you mean input?" in outcome.stderr and api.calls == []


def test_models_are_listed(api, lines):
    api.answers |= {"models": [], "supported_architectures": ["llama"]}
    assert invoke("models").stdout == "lines of ([],)\nlines of (['llama'],)\n"


@pytest.mark.parametrize("file", [None, "rag.yaml"])
def test_bench_prints_its_lines(api, file):
    api.answers["bench"] = SimpleNamespace(lines=lambda: ["3.3 rows/s"])
    outcome = invoke("bench", *([file] if file else []), "--max-tokens", 8, "--limit", 9)
    assert outcome.stdout == "3.3 rows/s\n"
    [(_, args, kwargs)] = api.calls
    assert args == (file and Path(file),) and kwargs.pop("reporter") is not None
    assert kwargs == dict(max_tokens=8, limit=9)




@pytest.mark.parametrize("command", [[], *([name] for name in cli.commands)])
def test_help_teaches_by_example(command):
    outcome = invoke(*command, "--help")
    assert outcome.exit_code == 0 and f"  batchpaged {' '.join(command)}" in outcome.output


def test_the_main_help_names_the_exit_codes():
    text = invoke("--help").output
    assert all(f"\n    {code}  " in text for code in (0, 1, 2, 3))


def test_the_version():
    assert invoke("--version").output.startswith("batchpaged, version 0.")


def test_help_imports_nothing_heavy():
    check = "import sys; from batchpaged.cli import cli; cli(['--help'], standalone_mode=False); " \
            "print(sorted({'torch', 'transformers', 'pyarrow', 'dask', 'pydantic', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


def test_a_reader_that_leaves_early_changes_no_exit_code():
    main = "import sys; sys.argv = ['batchpaged', 'validate', '--schema']; from batchpaged.cli import main; main()"
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run([sys.executable, "-c", main], stdout=write_end, stderr=subprocess.PIPE)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")


def test_output_that_the_terminal_cannot_show_is_replaced():
    main = "import sys; from batchpaged.cli import commands as cli; cli.cli = lambda **kwargs: print('a – b'); cli.main()"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", main], capture_output=True, env=environment, check=True)
    assert done.stdout == b"a ? b\n"
