"""report.json and metrics.prom as files."""

import json
import os
import re
from pathlib import Path

import pytest
from report.synthetic import make_facts

from batchpaged import atomic
from batchpaged.report.json import write_json
from batchpaged.report.metrics import build_report
from batchpaged.report.prometheus import to_prometheus, write_prometheus

SAMPLE = re.compile(r'(batchpaged_[a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+)\} (\S+)')


def test_report_json_reads_back(tmp_path: Path) -> None:
    report = build_report(make_facts(name="évaluation"))
    path = write_json(report, tmp_path / "report.json")
    assert json.loads(path.read_text(encoding="utf-8")) == report
    assert "évaluation" in path.read_text(encoding="utf-8")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_json({"old": 1}, tmp_path / "report.json")

    def no_space(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(atomic.os, "fsync", no_space)
    with pytest.raises(OSError, match="no space"):
        write_json({"new": 2}, path)
    assert json.loads(path.read_text()) == {"old": 1}
    assert os.listdir(tmp_path) == ["report.json"]


def test_nan_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        write_json({"x": float("nan")}, tmp_path / "report.json")
    assert os.listdir(tmp_path) == []


def samples(text: str) -> dict[tuple[str, str], float]:
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = SAMPLE.fullmatch(line)
            assert match, line
            found[match[1], match[2].split(",", 2)[2] if match[2].count(",") > 1 else ""] = float(match[3])
    return found


def test_metrics_by_hand() -> None:
    found = samples(to_prometheus(build_report(make_facts())))
    expected = {
        ("batchpaged_prefix_cache_hit_rate", ""): 0.6,
        ("batchpaged_prefix_cache_hit_rate_ceiling", ""): 200 / 300,
        ("batchpaged_reuse_efficiency", ""): 0.9,
        ("batchpaged_gpu_cache_usage_perc", 'stat="mean"'): 0.5,
        ("batchpaged_gpu_cache_usage_perc", 'stat="peak"'): 1.0,
        ("batchpaged_num_preemption_total", ""): 1,
        ("batchpaged_missed_tokens", 'cause="evicted"'): 12,
        ("batchpaged_rows", 'status="failed"'): 1,
        ("batchpaged_tokens", 'kind="prefilled"'): 120,
        ("batchpaged_rows_per_second", ""): 0.6,
        ("batchpaged_tokens_per_second", 'kind="completion"'): 3.0,
        ("batchpaged_time_seconds", 'stage="infer"'): 5.0,
        ("batchpaged_evaluation", 'metric="f1"'): 0.625,
        ("batchpaged_gate_passed", 'gate="failed_rows <= 0"'): 0,
        ("batchpaged_last_finished_timestamp_seconds", ""): 1772331320.0,
    }
    assert {key: found[key] for key in expected} == pytest.approx(expected)


def test_every_family_is_described_once_before_its_samples() -> None:
    text = to_prometheus(build_report(make_facts()))
    seen: list[str] = []
    for line in text.splitlines():
        name = line.split()[2] if line.startswith("#") else line.split("{")[0]
        if line.startswith("# HELP"):
            assert name not in seen
            seen.append(name)
        assert seen[-1] == name
    assert text.endswith("\n") and len(re.findall("^# TYPE", text, re.M)) == len(seen)


def test_labels_are_escaped() -> None:
    text = to_prometheus(build_report(make_facts(name='a\\b"c\nd')))
    assert 'name="a\\\\b\\"c\\nd",run_id=' in text
    samples(text)


def test_what_has_no_value_is_left_out(tmp_path: Path) -> None:
    report = build_report(make_facts(evaluation=None, times={}, finished_at="unknown", gates=()))
    text = write_prometheus(report, tmp_path / "metrics.prom").read_text()
    for name in ("evaluation", "rows_per_second", "time_seconds", "last_finished", "gate_passed"):
        assert f"batchpaged_{name}" not in text
    assert "None" not in text and "nan" not in text


def test_the_collector_may_read_the_metrics_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        metrics = write_prometheus(build_report(make_facts()), tmp_path / "metrics.prom")
        report = write_json(build_report(make_facts()), tmp_path / "report.json")
    finally:
        os.umask(before)
    assert (metrics.stat().st_mode & 0o777, report.stat().st_mode & 0o777) == (0o644, 0o600)
