"""A user's own metric, `module:function`: Python code beside the pipeline file, called for each row.

Only files in that folder, or else in the current one, are taken, and only functions that such a file defines: a pipeline file cannot name a function of
an installed package, which might do anything with a completion. It runs in the process that started the run.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from batchpaged.errors import ConfigError
from batchpaged.spelling import nearest

OwnMetric = Callable[[str, Sequence[str], Mapping[str, Any]], Any]
_WANTED = "(completion, references, row)"
_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)


class NotAScore(Exception):
    """A metric returned something else than a finite number; says what kind of thing, never a text."""


def load_own_metric(spec: str, folder: str) -> OwnMetric:
    """The function that `module:function` names, from module.py in `folder`, or else in the current one. Raises ConfigError."""
    module_name, _, name = spec.partition(":")
    file = _find(spec, Path(*module_name.split(".")).with_suffix(".py"), folder)
    module = _load(spec, module_name, file)
    function = getattr(module, name, None)
    if not inspect.isfunction(function) or function.__module__ != module.__name__:
        raise _problem(spec, f"{file} defines no function {name!r}{_similar(name, module)}")
    try:
        inspect.signature(function).bind("completion", [], {})
    except TypeError:
        found = inspect.signature(function)
        raise _problem(spec, f"it has to take {_WANTED}, but takes {found}") from None
    return function


def try_own_metric(spec: str, function: OwnMetric, references: Sequence[str], row: Mapping[str, Any]) -> None:
    """Calls it once, with a row of the input and a reference for completion. Raises ConfigError if that goes wrong."""
    completion = references[0] if references else "an answer"
    column = [completion] if isinstance(row.get("completion"), list) else completion
    try:
        as_score(function(completion, list(references), {**row, "completion": column}))
    except NotAScore as error:
        raise _problem(spec, f"it {error} for the first row; it has to return a finite number or a bool") from None
    except SystemExit as error:
        raise _problem(spec, f"it called sys.exit ({_place(error)}) for the first row of the input; a metric returns a number") from error
    except Exception as error:
        raise _problem(spec, f"it raised {type(error).__name__} ({_place(error)}) for the first row of the input") from error


def _find(spec: str, path: Path, folder: str) -> Path:
    files = [Path(folder, path), path]
    found = next(filter(Path.is_file, files), None)
    if found is None:
        raise _problem(spec, f"there is no {path} in {_folders(folder)}{_similar_file(files)}; evaluate.metrics_folder says where else to look")
    return found


def _folders(folder: str) -> str:
    here, first = Path.cwd(), Path(folder).resolve()
    return str(here) if first == here else f"{first}, where the pipeline file is or evaluate.metrics_folder, nor in {here}, the current folder"


def _similar_file(files: Sequence[Path]) -> str:
    others = [other.stem for file in files for other in file.parent.glob("*.py")]
    meant = nearest(files[0].stem, others, cutoff=0.7)
    return f"; did you mean {meant}?" if meant else ""


def as_score(value: object) -> float:
    """Of a number or a bool, NumPy's too. Raises NotAScore."""
    if not isinstance(value, _NUMBERS):
        raise NotAScore(f"returned {type(value).__name__}")
    try:
        score = float(value)
    except OverflowError:
        raise NotAScore("returned an integer too large for a float") from None
    if not math.isfinite(score):
        raise NotAScore(f"returned {score}")
    return score


def _load(spec: str, name: str, file: Path) -> ModuleType:
    # A name that no other module has: what is imported under its own name elsewhere stays as it is.
    found = importlib.util.spec_from_file_location(f"batchpaged_own_metrics.{name}", file)
    module = importlib.util.module_from_spec(found)
    try:
        with _importing_from(file.parent):
            found.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _problem(spec, f"{file} cannot be imported: {_cause(error)} ({_place(error)})") from error
    return module


def _cause(error: BaseException) -> str:
    """Of a failed import. Python's own words are shown where they are of modules and syntax: no row has been read for them."""
    if isinstance(error, SystemExit):
        return "it calls sys.exit"
    words = error.msg if isinstance(error, (ImportError, SyntaxError)) else None
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """The file may import its neighbours; at the end of the path, so that none of them stands in for another module."""
    path = str(folder.resolve())
    sys.path.append(path)
    try:
        yield
    finally:
        sys.path.remove(path)


def _similar(name: str, module: ModuleType) -> str:
    names = [key for key, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == module.__name__]
    meant = nearest(name, names, cutoff=0.7)
    return f"; did you mean {meant}?" if meant else f", only {', '.join(names)}" if names else ""


def _place(error: BaseException) -> str:
    """File and line; the message itself may hold a row's text."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{Path(error.filename).name}:{error.lineno}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def _problem(spec: str, what: str) -> ConfigError:
    return ConfigError(f"evaluate.metrics: {spec}: {what}")
