"""Which tokens of a step the model's output is wanted for: what comes after the last attention may skip the others."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_rows: ContextVar[torch.Tensor | None] = ContextVar("batchpaged_needed_rows", default=None)


def needed_rows() -> torch.Tensor | None:
    """int64 [n], rows of the step's token axis; None: all."""
    return _rows.get()


@contextmanager
def needing(rows: torch.Tensor | None) -> Iterator[None]:
    """Inside the block the model's output counts at `rows` only; None: at all."""
    token = _rows.set(rows)
    try:
        yield
    finally:
        _rows.reset(token)
