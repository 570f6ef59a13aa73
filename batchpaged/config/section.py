"""What all sections of the pipeline file have in common."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """Strict: `true` is no number and "5" no integer, but an integer is a fine number."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


Text = Annotated[str, Field(min_length=1)]
AtLeastOne = Annotated[int, Field(ge=1)]


def tuple_of_list(value: object) -> object:
    """YAML and JSON have lists, the frozen models tuples."""
    return tuple(value) if isinstance(value, list) else value


def tuple_of_any(value: object) -> object:
    """A single item stands for a list of one."""
    return (value,) if isinstance(value, (str, int)) else tuple_of_list(value)
