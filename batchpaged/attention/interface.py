"""The attention function registered with transformers.

Models call it in place of their own attention, once per layer; it hands queries, keys and values to the backend of the
step being run. transformers makes no mask for it: visibility follows from positions and block tables alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from transformers import AttentionInterface

from batchpaged.attention.backend import AttentionBackend, AttentionParams

NAME = "batchpaged"
_backend: ContextVar[AttentionBackend] = ContextVar("batchpaged_attention_backend")


def register() -> None:
    """Make `attn_implementation="batchpaged"` known to transformers. Repeating it changes nothing.

    There is no function for masks beside it, not even one that returns none: for its arguments transformers would look at the
    positions, and wait for the GPU in every step.
    """
    AttentionInterface.register(NAME, _forward)


@contextmanager
def use_backend(backend: AttentionBackend) -> Iterator[None]:
    """All attention calls of this thread inside the block go to `backend`."""
    token = _backend.set(backend)
    try:
        yield
    finally:
        _backend.reset(token)


def _forward(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, num_heads, num_tokens, head_dim]
    key: torch.Tensor,  # [1, num_kv_heads, num_tokens, head_dim]
    value: torch.Tensor,  # [1, num_kv_heads, num_tokens, value_dim]
    attention_mask: None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """-> ([1, num_tokens, num_heads, value_dim], None), the shape that transformers' models expect."""
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    params = AttentionParams(scaling, sliding_window or None, softcap, s_aux)
    output = _backend.get().attend(module.layer_idx, query[0], key[0], value[0], params)
    return output.unsqueeze(0), None
