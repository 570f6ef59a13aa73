"""From what the pipeline file names to data files in a fixed order: files, folders, globs, saved Hugging Face datasets.

A folder means every `*.parquet` below it, without names that start with `_` or `.`; a folder that
`Dataset.save_to_disk` wrote means its Arrow files, in the order it lists them. Within one glob or folder files are
sorted by path.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import pyarrow.fs as pafs

from batchpaged.dataset.locations import Location, first_line, mask, resolve
from batchpaged.errors import InputError
from batchpaged.spelling import nearest_file


@dataclass(frozen=True)
class FoundFile:
    """A data file that exists, not opened yet."""

    location: Location
    size: int  # bytes
    mtime_ns: int | None  # None where the filesystem has no such time

    @property
    def is_arrow(self) -> bool:
        """An Arrow stream, as `datasets` writes them; everything else is taken for Parquet."""
        return self.location.path.lower().endswith(".arrow")


def find_files(paths: Sequence[str]) -> tuple[list[FoundFile], list[str]]:
    """The files that the paths stand for, in order, and every problem met on the way (one line each)."""
    found: list[FoundFile] = []
    problems: list[str] = []
    for path in paths:
        try:
            found += _find(path)
        except InputError as error:
            problems.append(str(error))
        except Exception as error:  # a filesystem plug-in may raise anything; the other paths are still judged
            problems.append(f"{mask(path)}: {type(error).__name__}: {mask(first_line(error))}")
    return found, problems + _describe_repeats(found)


def _find(path: str) -> list[FoundFile]:
    location = resolve(path)
    info = location.info()
    if info.type == pafs.FileType.File:
        return [_found(location, info)]
    if info.type == pafs.FileType.Directory:
        return _find_in_folder(location)
    if _is_glob(location.path):
        return _find_by_glob(location)
    raise InputError(_describe_missing(location) + _counted_from(path))


def _found(parent: Location, info: pafs.FileInfo) -> FoundFile:
    return FoundFile(parent.at(info.path), info.size, info.mtime_ns)


def _find_in_folder(folder: Location) -> list[FoundFile]:
    if _holds(folder, "dataset_dict.json"):
        return _find_in_folder(folder.child(_only_split(folder)))
    if _holds(folder, "state.json", "dataset_info.json"):
        return _find_saved_dataset(folder)
    infos = folder.list(is_recursive=True)
    parquet = [_found(folder, info) for info in infos if _is_data_file(folder, info)]
    if not parquet:
        has_hidden = any(info.path.lower().endswith(".parquet") for info in infos)
        hint = " (what starts with _ or . is left out)" if has_hidden else ""
        raise InputError(f"{folder.name}: no *.parquet file in this folder or below; it holds {_describe(infos)}{hint}")
    return parquet


def _holds(folder: Location, *names: str) -> bool:
    infos = folder.filesystem.get_file_info([folder.child(name).path for name in names])
    return all(info.type == pafs.FileType.File for info in infos)


def _is_data_file(folder: Location, info: pafs.FileInfo) -> bool:
    is_hidden = any(part.startswith(("_", ".")) for part in _relative(folder.path, info.path).split("/"))
    return info.type == pafs.FileType.File and info.path.lower().endswith(".parquet") and not is_hidden


def _only_split(folder: Location) -> str:
    splits = json.loads(folder.child("dataset_dict.json").read_bytes())["splits"]
    if len(splits) == 1:
        return splits[0]
    names = ", ".join(folder.child(split).name for split in splits) or "none"
    raise InputError(f"{folder.name}: a DatasetDict with {len(splits)} splits; name one of them as the path: {names}")


def _find_saved_dataset(folder: Location) -> list[FoundFile]:
    state = json.loads(folder.child("state.json").read_bytes())
    names = [entry["filename"] for entry in state["_data_files"]]
    infos = folder.filesystem.get_file_info([folder.child(name).path for name in names])
    missing = [name for name, info in zip(names, infos, strict=True) if "/" in name or info.type != pafs.FileType.File]
    if missing:
        raise InputError(
            f"{folder.name}: state.json lists {', '.join(missing)}, which is not there; save the dataset again"
        )
    return [_found(folder, info) for info in infos]


def _find_by_glob(pattern: Location) -> list[FoundFile]:
    parts = pattern.path.split("/")
    depth = next(i for i, part in enumerate(parts) if _is_glob(part))
    base, rest = pattern.at("/".join(parts[:depth]) or "/"), parts[depth:]
    if base.info().type != pafs.FileType.Directory:
        raise InputError(_describe_missing(base, f"{pattern.name} matches nothing: "))
    infos = base.list(is_recursive=len(rest) > 1 or "**" in rest)
    is_match = re.compile(_glob_regex(rest)).fullmatch
    matches = [info for info in infos if is_match(_relative(base.path, info.path))]
    files = [_found(base, info) for info in matches if info.type == pafs.FileType.File]
    if not files:
        hint = f"it matches {len(matches)} folders, add /*.parquet to read in them; " if matches else ""
        raise InputError(f"{pattern.name} matches no file: {hint}looked in {base.name}, which holds {_describe(infos)}")
    return files


def _glob_regex(parts: Sequence[str]) -> str:
    """`**` is any number of folders; `*`, `?`, `[...]` stay within one name and never match a leading `.` or `_`."""
    pieces = []
    for i, part in enumerate(parts):
        is_last = i == len(parts) - 1
        if part == "**":
            pieces.append(r"(?![._])[^/]+(?:/(?![._])[^/]+)*" if is_last else r"(?:(?![._])[^/]+/)*")
        else:
            guard = "" if part.startswith((".", "_")) else r"(?![._])"
            pieces.append(guard + "".join(_translate(part)) + ("" if is_last else "/"))
    return "".join(pieces)


def _translate(part: str) -> Iterator[str]:
    for token in re.findall(r"\[!?\]?[^\]]*\]|.", part, re.DOTALL):
        if token == "*":
            yield "[^/]*"
        elif token == "?":
            yield "[^/]"
        elif len(token) > 1:
            body = token[1:-1].replace("\\", r"\\")
            yield f"[^{body[1:]}]" if body.startswith("!") else f"[{body}]"
        else:
            yield re.escape(token)


def _is_glob(path: str) -> bool:
    return any(character in path for character in "*?[")


def _relative(base: str, path: str) -> str:
    """`path` below `base`, by depth: some filesystems answer with another spelling of the base."""
    depth = len([part for part in base.split("/") if part])
    return "/".join([part for part in path.split("/") if part][depth:])


def _describe_missing(location: Location, start: str = "") -> str:
    """A missing path, its nearest existing folder, and what that holds; spelling mistakes get a suggestion."""
    folder = location
    while len(PurePosixPath(folder.path).parts) > 1:
        missing = PurePosixPath(folder.path).name
        folder = folder.at(str(PurePosixPath(folder.path).parent))
        if folder.info().type == pafs.FileType.Directory:
            infos = folder.list(is_recursive=False)
            near = nearest_file(missing, [PurePosixPath(info.path).name for info in infos])
            hint = f"did you mean {near!r}? " if near else ""
            return f"{start}{location.name} does not exist; {hint}{folder.name} holds {_describe(infos)}"
    return f"{start}{location.name} does not exist"


def _counted_from(path: str) -> str:
    """What a relative path is relative to."""
    is_relative = "://" not in path and not os.path.isabs(os.path.expanduser(path))
    return " (a relative path counts from the current folder)" if is_relative else ""


def _describe(infos: Sequence[pafs.FileInfo]) -> str:
    """What a folder holds, in a few words: `3 *.csv, 1 *.json, 2 folders`."""
    suffixes = Counter(
        PurePosixPath(info.path).suffix or "(no suffix)" for info in infos if info.type == pafs.FileType.File
    )
    num_folders = sum(info.type == pafs.FileType.Directory for info in infos)
    words = [f"{count} *{suffix}" for suffix, count in suffixes.most_common(5)]
    words += (
        [f"{sum(suffixes.values()) - sum(c for _, c in suffixes.most_common(5))} others"] if len(suffixes) > 5 else []
    )
    words += [f"{num_folders} folders"] if num_folders else []
    return ", ".join(words) or "nothing"


def _describe_repeats(found: Sequence[FoundFile]) -> list[str]:
    """A file reached twice would double its rows."""
    counts = Counter(file.location.name for file in found)
    return [
        f"{name}: named {count} times by input.path; its rows would be doubled"
        for name, count in counts.items()
        if count > 1
    ]
