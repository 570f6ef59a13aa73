"""A machine of its own for every test: empty caches, no network, and a wheel made of what the test puts in."""

import hashlib
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest

from batchpaged.models import aliases
from batchpaged.models.aliases import Alias, PinnedWheel
from tiny_models import save_tiny

ALIAS = "tiny-model"
HUB_ID = "someone/tiny"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that holds both caches; the current directory is an empty one."""
    monkeypatch.setenv("BATCHPAGED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", _no_network)
    (tmp_path / "index").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def _no_network(*arguments: object, **keywords: object) -> None:
    raise ConnectionError("no network in tests")


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Path:
    """A complete model folder."""
    return save_tiny(tmp_path / "tiny")


@pytest.fixture
def make_alias(monkeypatch: pytest.MonkeyPatch, machine: Path) -> Callable[[bytes], Alias]:
    """Registers the alias `tiny-model`; its wheel, in pip's index, holds the given bytes as its GGUF file."""

    def make(gguf: bytes = b"any bytes") -> Alias:
        wheel = _write_wheel(machine / "index", gguf)
        alias = Alias(ALIAS, HUB_ID, wheel, "a model for tests")
        monkeypatch.setitem(aliases.ALIASES, ALIAS, alias)
        return alias

    return make


def _write_wheel(folder: Path, gguf: bytes) -> PinnedWheel:
    """With as much around the file as pip asks for."""
    file, about = folder / "tiny_wheel-1.0-py3-none-any.whl", "tiny_wheel-1.0.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("tiny_wheel/model.gguf", gguf)
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-wheel\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    content = file.read_bytes()
    return PinnedWheel(
        project="tiny-wheel",
        version="1.0",
        file_name=file.name,
        sha256=hashlib.sha256(content).hexdigest(),
        num_bytes=len(content),
        member="tiny_wheel/model.gguf",
        num_bytes_needed=1,
    )


@pytest.fixture
def with_wheel() -> Callable[..., Alias]:
    """The alias with some of its wheel's facts changed."""
    return lambda alias, **facts: replace(alias, wheel=replace(alias.wheel, **facts))
