"""`model.adapters`: LoRA adapters by name."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer

MAX_ADAPTERS = 500  # what the plan's keys can tell apart

AdapterName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", examples=["legal"])]
Folder = Annotated[str, Field(min_length=1)]


def pairs_of(value: object) -> object:
    """A mapping -> (name, folder) pairs by name, which can be hashed; each name's place among them is its number."""
    return tuple(sorted(value.items(), key=lambda item: str(item[0]))) if isinstance(value, Mapping) else value or ()


Adapters = Annotated[
    tuple[tuple[AdapterName, Folder], ...],
    Field(max_length=MAX_ADAPTERS),
    BeforeValidator(pairs_of, json_schema_input_type=dict[AdapterName, Folder]),
    PlainSerializer(dict),
]
