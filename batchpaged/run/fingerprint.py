"""What a run is of: if any of it changes, finished units would not fit the rest, so the run directory is refused."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import xxhash
from pydantic import BaseModel

from batchpaged.dataset.locations import mask
from batchpaged.models.adapters import Adapter

# The sections that decide what completions come out; cluster, gates, evaluate and engine may change between sittings, all but
# its kv_dtype.
SECTIONS = ("input", "prompt", "model", "sampling")


def run_identity(
    pipeline: BaseModel,
    model_identity: str,
    files: list[dict[str, Any]],
    rows_digest: str | None = None,
    adapters: Sequence[Adapter] = (),
) -> dict[str, Any]:
    """JSON-able: the deciding sections of the pipeline file, the model's identity and the input files.

    Of adapters it counts what they are, not the folders that they lie in.

    With `rows_digest` the input are rows in memory: what they are counts, not the file they were put in.
    """
    settings = pipeline.model_dump(mode="json", include=set(SECTIONS))
    if pipeline.stages:
        settings = {key: settings[key] for key in ("input", "model")} | {"stages": _stages(pipeline)}
    settings["model"]["adapters"] = {adapter.name: adapter.identity for adapter in adapters}
    if pipeline.engine.kv_dtype != "auto":
        settings["engine"] = {"kv_dtype": pipeline.engine.kv_dtype}
    if rows_digest is None:
        settings["input"]["path"] = _without_credentials(settings["input"]["path"])
    else:
        settings["input"] = None
        files = [{"path": "the rows given", "version": rows_digest}]
    return {"pipeline": settings, "model": model_identity, "input": files}


def _stages(pipeline: BaseModel) -> dict[str, Any]:
    """By name, so that a change is told by its key; in which order they run counts too."""
    stages = {stage.name: pipeline.of_stage(i) for i, stage in enumerate(pipeline.stages)}
    settings = {name: stage.model_dump(mode="json", include={"prompt", "sampling"}) for name, stage in stages.items()}
    return {**settings, "(order)": list(stages)}


def _without_credentials(path: str | list[str]) -> str | list[str]:
    return mask(path) if isinstance(path, str) else [mask(item) for item in path]


def fingerprint(identity: Mapping[str, Any]) -> str:
    """32 hex digits over a run's identity."""
    return xxhash.xxh3_128_hexdigest(json.dumps(identity, sort_keys=True).encode())


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two identities, one line each, for the message that refuses the run directory."""
    lines = list(_changed_keys(old["pipeline"], new["pipeline"], ""))
    if old["model"] != new["model"]:
        lines.append("the model's files are not the same")
    return lines + list(_changed_files(old["input"], new["input"]))


def _changed_keys(old: Any, new: Any, key: str) -> Iterator[str]:
    if all(value is None or isinstance(value, Mapping) for value in (old, new)):
        old, new = old or {}, new or {}
        for name in sorted({*old, *new}):
            yield from _changed_keys(old.get(name), new.get(name), f"{key}.{name}" if key else name)
    elif old != new:
        is_prompt = "prompt" in key.split(".")
        yield f"{key} changed" if is_prompt else f"{key}: {old!r} -> {new!r}"


def _changed_files(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> Iterator[str]:
    before, after = ({file["path"]: file for file in files} for files in (old, new))
    yield from (f"input file removed: {path}" for path in before if path not in after)
    yield from (f"input file added: {path}" for path in after if path not in before)
    yield from (f"input file changed: {path}" for path in before if path in after and before[path] != after[path])
