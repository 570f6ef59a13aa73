"""docs/nightly.md: the examples shown are the files, and the files do what the page says."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from report.synthetic import make_facts

from batchpaged.report.facts import EarlierStages
from batchpaged.report.metrics import build_report
from batchpaged.report.prometheus import to_prometheus

DOCS = Path(__file__).resolve().parents[1] / "docs"
EXAMPLES = DOCS / "examples" / "nightly"
FILES = sorted(path.name for path in EXAMPLES.iterdir() if path.is_file())


@pytest.mark.parametrize("name", FILES)
def test_what_the_page_shows_is_the_file(name):
    assert f"\n{(EXAMPLES / name).read_text()}```\n" in (DOCS / "nightly.md").read_text()


# --- the script, over a stand-in for batchpaged ---

STAND_IN = """#!/bin/bash
echo "$*" >> calls
if [ "$1" = run ]; then
  mkdir -p "$4" && echo metrics > "$4/metrics.prom"
  set -- $(cat codes); code=$1; shift; echo "$@" > codes
  exit "$code"
fi
"""


def nightly(tmp_path, codes):
    (tmp_path / "batchpaged").write_text(STAND_IN)
    (tmp_path / "batchpaged").chmod(0o755)
    (tmp_path / "codes").write_text(codes)
    (tmp_path / "prom").mkdir()
    environment = {
        **os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "RETRY_SECONDS": "0",
        "BATCHPAGED_HOME": str(tmp_path), "METRICS_DIR": str(tmp_path / "prom"),
    }  # fmt: skip
    done = subprocess.run([EXAMPLES / "nightly.sh", "2026-03-01"], env=environment)
    calls = (tmp_path / "calls").read_text().splitlines()
    return done.returncode, [call.split()[0] for call in calls], (tmp_path / "prom" / "rag.prom").exists()


AFTERWARDS = ["history", "clean", "clean"]


@pytest.mark.parametrize(
    ("codes", "exit_code", "calls", "has_metrics"),
    [
        ("0", 0, ["run", *AFTERWARDS], True),
        ("1", 1, ["run", *AFTERWARDS], True),
        ("2", 2, ["run"], False),
        ("3 3 0", 0, ["run"] * 3 + AFTERWARDS, True),
        ("3 3 3 3 0", 3, ["run"] * 4, False),
    ],
)
def test_the_script_repeats_what_is_unfinished_and_nothing_else(tmp_path, codes, exit_code, calls, has_metrics):
    assert nightly(tmp_path, codes) == (exit_code, calls, has_metrics)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("name", ["rag-nightly.service", "rag-nightly.timer"])
def test_systemd_takes_the_units(name, tmp_path):
    for path in EXAMPLES.glob("rag-nightly.*"):
        shutil.copy(path, tmp_path)
    done = subprocess.run(["systemd-analyze", "verify", tmp_path / name], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_crontab_has_a_time_and_an_escaped_date():
    line = (EXAMPLES / "crontab").read_text().splitlines()[-1]
    assert re.fullmatch(r"15 1 \* \* \*  flock -n \S+ \S+/nightly.sh \$\(date \+\\%F\)", line)


def test_alerts_are_about_metrics_that_there_are():
    [group] = yaml.safe_load((EXAMPLES / "alerts.yaml").read_text())["groups"]
    there = set(re.findall(r"^(batchpaged_\w+)\{", to_prometheus(build_report(make_facts())), re.MULTILINE))
    samples = to_prometheus(build_report(make_facts()))
    for rule in group["rules"]:
        named = re.findall(r"(batchpaged_\w+)", rule["expr"])
        assert named and set(named) <= there, rule["alert"]
        assert rule["annotations"]["summary"] and rule["labels"]["severity"] in ("info", "warning", "critical")
        for label in re.findall(r"\{(\w+=\"\w+\")\}", rule["expr"]):
            assert label in samples


def test_the_page_lists_the_metrics_that_there_are():
    listed = set(re.findall(r"`(batchpaged_\w+)`", (DOCS / "report.md").read_text()))
    there = set(re.findall(r"^(batchpaged_\w+)\{", to_prometheus(build_report(make_facts(earlier_stages=EarlierStages(0, 0)))), re.MULTILINE))
    assert listed == there
