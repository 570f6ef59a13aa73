"""Commands find a stand-in where api.py is."""

import sys
from types import SimpleNamespace

import pytest
from cli.fake_api import FakeApi

import batchpaged
from batchpaged.cli import text as cli_text


@pytest.fixture
def api(monkeypatch):
    fake = FakeApi()
    monkeypatch.delenv("BATCHPAGED_DEBUG", raising=False)
    monkeypatch.setitem(sys.modules, "batchpaged.api", fake)
    monkeypatch.setattr(batchpaged, "api", fake, raising=False)
    monkeypatch.setitem(sys.modules, "batchpaged.report.terminal", SimpleNamespace(render_summary=_summary))
    return fake


@pytest.fixture
def lines(monkeypatch):
    """What the functions of cli/text make of an answer is theirs to test."""
    for name in ("plan_lines", "validation_lines", "status_lines", "model_lines", "architecture_lines",
                 "comparison_lines", "history_lines", "cleaning_lines"):  # fmt: skip
        monkeypatch.setattr(cli_text, name, lambda *given: [f"lines of {given}"])


def _summary(report, run_dir, location):
    return f"summary of {report['run']['name']} in {run_dir}, {location}"
