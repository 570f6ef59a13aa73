"""What all sections of the pipeline file have in common."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Strict: `true` is no number and "5" no integer, but an integer is a fine number."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)
