"""Relative paths of a pipeline file that lead somewhere from the file's folder, and nowhere from where the command runs."""

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from batchpaged.config.loading import read_pipeline_text
from batchpaged.config.overrides import apply_overrides
from batchpaged.config.yaml_text import read_yaml
from batchpaged.errors import ConfigError, RefusedError

_PATHS = (
    ("input", "path"),
    ("model", "id"),
    ("model", "adapters"),
    ("prompt", "chat_template"),
    ("sampling", "structured", "json_schema"),
    ("evaluate", "metrics_folder"),
)


@contextmanager
def hinting(pipeline: object, overrides: Sequence[str] = ()) -> Iterator[None]:
    """Adds to a refusal of the work inside, where it may come from the folder that the command was started in.

    `pipeline`: its file; anything else has no folder, and gets no hint.
    """
    try:
        yield
    except RefusedError as error:
        hints = hints_on_paths(Path(pipeline), overrides) if isinstance(pipeline, (str, Path)) else []
        if not hints:
            raise
        raise type(error)("\n".join([str(error), *hints])) from error


def hints_on_paths(file: Path, overrides: Sequence[str] = ()) -> list[str]:
    """One line for each key whose path is there beside the file, and not in the current folder."""
    folder = file.absolute().parent
    if folder == Path.cwd():
        return []
    try:
        data = read_yaml(read_pipeline_text(file), str(file)).data
    except ConfigError:
        return []
    if not isinstance(data, Mapping):
        return []
    data = apply_overrides(data, overrides)[0]
    stages = data.get("stages")
    sections = {"": data, **{f"stages[{index}].": stage for index, stage in enumerate(stages if isinstance(stages, list) else ())}}
    return [
        f"{key}: {path} is in {folder}, the pipeline file's folder, but relative paths count from the current one, "
        f"{Path.cwd()}; run the command there, or give {os.path.relpath(folder / path)}"
        for place, section in sections.items()
        for key, path in _paths(section, place)
        if _is_there(folder / path) and not _is_there(Path(path))
    ]


def _paths(section: object, place: str) -> Iterator[tuple[str, str]]:
    """(key, relative path) of what may be one, in the file as a whole or in a stage."""
    for keys in _PATHS:
        value: object = section
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else [value]
        yield from ((place + ".".join(keys), item) for item in items if _is_relative(item))


def _is_relative(value: object) -> bool:
    return isinstance(value, str) and value.isprintable() and "://" not in value and not value.startswith(("/", "~")) and value != ""


def _is_there(path: Path) -> bool:
    return os.path.exists(path) or next(glob.iglob(str(path), recursive=True), None) is not None
