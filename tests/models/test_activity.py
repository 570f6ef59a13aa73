"""What is shown while something takes long."""

import io
import threading
from pathlib import Path

import pytest

from batchpaged.models import activity as module
from batchpaged.models.activity import activity, folder_bytes


def test_plain_lines_come_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    came = threading.Event()

    def note(text: str) -> None:
        notes.append(text)
        if len(notes) == 3:
            came.set()

    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0.001)
    with activity("fetching", note, num_bytes=90_000_000, measure=lambda: 30_000_000):
        assert came.wait(30)
    assert notes[:3] == ["fetching (90 MB)", "fetching: 30 MB so far", "fetching: 30 MB so far"]


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal)
    with activity("converting", notes.append):
        pass
    assert "converting" in terminal.getvalue()
    assert notes == ["converting: done"]


def test_an_error_inside_passes_through() -> None:
    with pytest.raises(ValueError, match="inside"), activity("converting", lambda text: None):
        raise ValueError("inside")


def test_folder_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"123")
    (tmp_path / "c").write_bytes(b"4")
    (tmp_path / "link").symlink_to(tmp_path / "c")
    assert folder_bytes(tmp_path) == 4
    assert folder_bytes(tmp_path / "nowhere") == 0
