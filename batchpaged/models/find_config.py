"""A model's configuration alone, from what is on this machine: sizing needs neither weights nor tokenizer."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from batchpaged.errors import ModelError
from batchpaged.models.aliases import ALIASES, nearest_alias
from batchpaged.models.folder import CONFIG_FILE
from batchpaged.models.hub import is_hub_id
from batchpaged.models.load import read_config
from batchpaged.models.wheel import converted_folder

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def find_config(model: str | Path) -> "PreTrainedConfig":
    """From a config.json, a folder with one, an alias or a hub id whose config.json was downloaded before.

    Raises ModelError, which says where was looked; asks no server.
    """
    name = str(model)
    places = list(_places(name))
    found = next((place for place in places if place.is_file()), None)
    if found is not None:
        return read_config(name, found)
    nearest = nearest_alias(name)
    hint = f"\nDid you mean {nearest}?" if nearest is not None and nearest != name else ""
    tried = "".join(f"\n  {place.absolute()}: not there{_beside(place)}" for place in places)
    raise ModelError(
        f"model {name!r}: no {CONFIG_FILE} of it was found on this machine{tried}{hint}\n"
        f"Give a {CONFIG_FILE}, a folder that holds one, or a model that is here (`batchpaged models`); nothing is downloaded"
    )


def _beside(place: Path) -> str:
    """Of a file whose folder is there: other files of the kind."""
    names = sorted(file.name for file in place.parent.glob("*.json")) if place.parent.is_dir() else []
    return f" (there: {', '.join(names[:5])})" if names else ""


def to_config(source: "PreTrainedConfig | Mapping[str, Any] | str | Path") -> "PreTrainedConfig":
    """A configuration as it is, the content of a config.json, or the name of a model. Raises ModelError."""
    if isinstance(source, Mapping):
        return _from_content(source)
    return find_config(source) if isinstance(source, (str, Path)) else source


def _from_content(content: Mapping[str, Any]) -> "PreTrainedConfig":
    """By way of a file: what transformers mends in old configurations, it mends while it reads one."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / CONFIG_FILE
        file.write_text(json.dumps(dict(content)), "utf-8")
        return read_config(str(content.get("model_type", "config")), file)


def _places(name: str) -> Iterator[Path]:
    """Files that may be the configuration, in the order of `resolve_model`."""
    path = Path(name).expanduser()
    yield path / CONFIG_FILE if path.is_dir() or path.suffix != ".json" else path
    alias = ALIASES.get(name)
    if alias is not None and alias.wheel is not None:
        yield converted_folder(alias) / CONFIG_FILE
    hub_id = alias.hub_id if alias is not None else name
    if is_hub_id(hub_id):
        yield from _in_hub_cache(hub_id)


def _in_hub_cache(hub_id: str) -> Iterator[Path]:
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(hub_id, CONFIG_FILE)
    if isinstance(file, str):
        yield Path(file)
