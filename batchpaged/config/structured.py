"""`sampling.structured`: what a completion must be, whatever the model would rather say."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ModelWrapValidatorHandler, PrivateAttr, model_validator

from batchpaged.config.section import Section

MAX_SCHEMA_BYTES = 1 << 20  # a data file given by mistake is not read
MAX_CHOICES = 10_000
_NUM_SHOWN = 5  # choices in a message


def _schema_text(value: object) -> object:
    """A mapping, JSON text or the path of a JSON file -> JSON text, keys in their order: properties are written in it.

    The text goes wherever the pipeline goes, so no worker needs the file, and a change of the file is another run.
    """
    if value is None:
        return None
    if isinstance(value, str):
        value = _parse(_read(value) if _is_path(value) else value)
    if not isinstance(value, Mapping):
        raise ValueError("must be a JSON schema: a mapping, or the path of a JSON file that holds one")
    return _dump(value)


def _is_path(text: str) -> bool:
    return not text.lstrip().startswith("{")


def _read(path: str) -> str:
    try:
        if Path(path).stat().st_size > MAX_SCHEMA_BYTES:
            raise ValueError("is a file larger than 1 MiB, so no JSON schema")
        return Path(path).read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("is a file that is not text in UTF-8") from None
    except OSError as error:
        raise ValueError(f"must be a JSON schema, or the path of a file that holds one ({error.strerror})") from None


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"is not JSON ({error})") from None


def _dump(schema: Mapping) -> str:
    try:
        return json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"holds a value that JSON does not have ({error})") from None


def _choices_of(value: object) -> object:
    """The list as a tuple. Raises ValueError that shows how it would be right where YAML has read something else than texts."""
    if not isinstance(value, list):
        return value
    if not value:
        raise ValueError('must name at least one text, like ["yes", "no"]')
    if any(isinstance(item, (bool, int, float)) for item in value):
        shown = json.dumps([_as_text(item) for item in value[:_NUM_SHOWN]], ensure_ascii=False)
        why = "YAML reads yes, no, on and off as true and false; " * any(isinstance(item, bool) for item in value)
        raise ValueError(f"must be texts; {why}write them in quotes: {shown}{' ...' * (len(value) > _NUM_SHOWN)}")
    return tuple(value)


def _as_text(item: object) -> object:
    """As it was most likely written."""
    if isinstance(item, bool):
        return "yes" if item else "no"
    return str(item) if isinstance(item, (int, float)) else item


Text = Annotated[str, Field(min_length=1)]
SchemaText = Annotated[
    Text | None,
    BeforeValidator(_schema_text, json_schema_input_type=Annotated[str, Field(min_length=1)] | dict[str, Any] | None),
]
Choices = Annotated[
    tuple[Text, ...],
    Field(min_length=1, max_length=MAX_CHOICES),
    BeforeValidator(_choices_of),
]


class StructuredConfig(Section):
    """What a completion must be: exactly one of json_schema, regex, choices and column."""

    json_schema: SchemaText = Field(
        None, description="A completion is JSON that fits this schema: a mapping, or the path of a JSON file"
    )
    regex: Text | None = Field(None, description="A completion matches this regular expression from its start to its end")
    choices: Choices | None = Field(None, description="A completion is one of these texts")
    column: Text | None = Field(
        None, description="Column of JSON schemas, as text: one per row; a row whose value is null is free"
    )
    _schema_file: str | None = PrivateAttr(None)

    @model_validator(mode="wrap")
    @classmethod
    def _with_schema_file(cls, given: Any, read: ModelWrapValidatorHandler["StructuredConfig"]) -> "StructuredConfig":
        config, schema = read(given), given.get("json_schema") if isinstance(given, Mapping) else None
        if isinstance(schema, str) and _is_path(schema):
            config._schema_file = schema
        return config

    @property
    def schema_file(self) -> str | None:
        """That json_schema was read from, for messages; None where the pipeline file holds the schema itself."""
        return self._schema_file
