"""From a file, a mapping and `--set` overrides to a Pipeline, or to one ConfigError with every problem."""

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path

from pydantic import BaseModel, ValidationError

from batchpaged.config.models import Pipeline
from batchpaged.config.overrides import apply_overrides, is_or_holds
from batchpaged.config.problems import ABSENT, Problem, field_problems, value_at
from batchpaged.config.rules import broken_rules, parts_of
from batchpaged.config.schema import node_at
from batchpaged.config.yaml_text import read_yaml
from batchpaged.errors import ConfigError
from batchpaged.spelling import nearest_file

MAX_FILE_BYTES = 1 << 20  # far above any pipeline; a data file given by mistake is not read


def load_pipeline(path: str | Path, overrides: Sequence[str] = ()) -> Pipeline:
    """The pipeline in a YAML file, with overrides such as `engine.block_size=32` (the value is YAML) put over it.

    Raises ConfigError that lists every problem with file, line, key, value and what is allowed.
    """
    document = read_yaml(read_pipeline_text(Path(path)), str(path))
    if not isinstance(document.data, Mapping):
        raise ConfigError(f"{path}: {_not_a_mapping(document.data)}")
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(path).stem).lstrip("._-")[:100]
    named = {"name": stem or "pipeline", **document.data}
    return _parse(named, str(path), overrides, document.lines, Path(path).parent)


def _with_metrics_folder(data: Mapping, folder: Path) -> Mapping:
    """A user's metrics are looked for beside the pipeline file first, unless it says otherwise."""
    changed = dict(data)
    evaluate, stages = data.get("evaluate"), data.get("stages")
    if isinstance(evaluate, Mapping) and ":" in str(evaluate.get("metrics")):
        changed["evaluate"] = {"metrics_folder": str(folder), **evaluate}
    if isinstance(stages, list):
        changed["stages"] = [_with_metrics_folder(s, folder) if isinstance(s, Mapping) else s for s in stages]
    return changed


def parse_pipeline(mapping: Mapping, origin: str = "<python>", overrides: Sequence[str] = ()) -> Pipeline:
    """The pipeline in a mapping of plain values or sections; `origin` stands for the file in error messages.

    Raises ConfigError like load_pipeline.
    """
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{origin}: {_not_a_mapping(mapping)}")
    return _parse(_plain(mapping), origin, overrides, {})


def read_pipeline_text(path: Path) -> str:
    """Raises ConfigError where it can be no pipeline file."""
    try:
        if path.is_dir():
            raise ConfigError(f"{path}: is a folder; give the pipeline file in it")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than 1 MiB, so not a pipeline file")
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file{_similar_file(path)}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not text in UTF-8; a pipeline file is YAML") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _similar_file(path: Path) -> str:
    try:
        names = [file.name for file in path.parent.iterdir() if file.suffix in (".yaml", ".yml")]
    except OSError:
        return f" (there is no folder {path.parent})"
    meant = nearest_file(path.name, names)
    return f"; did you mean {path.parent / meant}?" if meant else ""


def _not_a_mapping(data: object) -> str:
    if data is None:
        return "is empty; a pipeline needs at least input, prompt, model and output"
    return f"holds {_kind(data)} where a mapping is needed, like `input:`, `prompt:`, `model:`, `output:`"


def _kind(data: object) -> str:
    return {str: "plain text", list: "a list", tuple: "a list"}.get(type(data), f"a value ({type(data).__name__})")


def _plain(mapping: Mapping) -> dict:
    """Sections given as objects count as what was set in them."""
    return {
        key: value.model_dump(exclude_unset=True) if isinstance(value, BaseModel) else deepcopy(value)
        for key, value in mapping.items()
    }


def _parse(
    mapping: Mapping, origin: str, overrides: Sequence[str], lines: Mapping[str, int], folder: Path | None = None
) -> Pipeline:
    """`folder`: of the pipeline file, if there is one."""
    data, overridden, problems = apply_overrides(mapping, overrides)
    data = data if folder is None else _with_metrics_folder(data, folder)
    # a section left empty (`engine:` with every line commented out) is one at its defaults
    data = {key: value for key, value in data.items() if value is not None or node_at((key,)) is None}
    try:
        pipeline = Pipeline.model_validate(data)
    except ValidationError as error:
        problems += _problems(error, data)
    if problems:
        raise ConfigError(_message(problems, origin, overridden, lines) + _emptied(overrides))
    return pipeline


def _emptied(overrides: Sequence[str]) -> str:
    """Where a problem may come from: what was given no value is null, which the shell's user may not have meant."""
    keys = [key for key, equals, value in (override.partition("=") for override in overrides) if equals and not value.strip()]
    return f"\n(without a value, --set {'= and --set '.join(keys)}= gives null)" if keys else ""


def _problems(error: ValidationError, data: Mapping) -> list[Problem]:
    """Wrong fields, and the rules broken by values that are right by themselves: given, or the default."""

    def value(key: str) -> object:
        path = parts_of(key)
        given = value_at(path, data)
        return (node_at(path) or {}).get("default") if given is ABSENT else given

    fields = field_problems(error, data)
    wrong = {key for problem in fields for key in (problem.key, problem.meant) if key}
    return [*fields, *(Problem(key, _leaf(value(key)), message) for key, message in broken_rules(value, wrong))]


def _leaf(value: object) -> object:
    """Sections are not repeated in a message, nor that one is not there."""
    return ABSENT if value is None or isinstance(value, Mapping) else value


def _message(problems: Sequence[Problem], origin: str, overridden: Iterable[str], lines: Mapping[str, int]) -> str:
    texts = [f"{_place(problem.key, origin, overridden, lines)}: {problem.text()}" for problem in problems]
    if len(texts) == 1:
        return texts[0]
    return "\n  ".join([f"{len(texts)} problems in the pipeline", *texts])


def _place(key: str, origin: str, overridden: Iterable[str], lines: Mapping[str, int]) -> str:
    """`--set` for what an override brought in, else the file with the line of the key or of its section."""
    if any(is_or_holds(other, key) or is_or_holds(key, other) for other in overridden):
        return "--set"
    for candidate in (key, key.partition("[")[0], key.rpartition(".")[0]):
        if candidate in lines:
            return f"{origin}:{lines[candidate]}"
    return origin
