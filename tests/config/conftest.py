from copy import deepcopy

import pytest

from batchpaged.config import parse_pipeline
from batchpaged.errors import ConfigError

SMALLEST = {
    "input": {"path": "rows.parquet"},
    "prompt": {"user": "{{ question }}"},
    "model": {"id": "smollm2-135m-instruct"},
    "output": {"path": "runs/x"},
}


@pytest.fixture
def smallest() -> dict:
    """A new copy of the smallest mapping that is a pipeline."""
    return deepcopy(SMALLEST)


@pytest.fixture
def complaint(smallest):
    """Function: the error's text once the value is put at the dotted key of the smallest pipeline."""

    def find(key: str, value: object) -> str:
        *sections, name = key.split(".")
        target = smallest
        for section in sections:
            target = target.setdefault(section, {})
        target[name] = value
        with pytest.raises(ConfigError) as caught:
            parse_pipeline(smallest, "rag.yaml")
        return str(caught.value)

    return find
