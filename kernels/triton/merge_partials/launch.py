"""Checks, grid and configuration of merging partial attention results."""

import torch
import triton

from batchpaged.kernels.triton.launching import Example, check, launch, without_memory
from batchpaged.kernels.triton.merge_partials.kernel import merge_partials as kernel

# Partial results read at once; more of them take turns. Two thousand numbers are in flight for a head of 128.
PARTIALS_AT_ONCE = 16


def merge_partials(
    partial_output: torch.Tensor,  # float32 [num_partials, num_heads, value_dim], contiguous
    partial_lse: torch.Tensor,  # float32 [num_partials, num_heads], contiguous; -inf: saw no key, its output is not read
    tokens: torch.Tensor,  # int32 [num_merged], rows of `output`
    starts: torch.Tensor,  # int32 [num_merged + 1]: partial results [starts[i], starts[i + 1]) are those of tokens[i]
    sinks: torch.Tensor | None,  # [num_heads]
    output: torch.Tensor,  # [num_tokens, num_heads, value_dim], contiguous
) -> None:
    """Write the output of `tokens`; other rows stay as they are. Raises ValueError."""
    _, num_heads, value_dim = output.shape
    check(partial_output.shape[1:] == output.shape[1:], f"partial results of {partial_output.shape} for {output.shape}")
    check(partial_lse.shape == partial_output.shape[:2], f"log-sum-exps of {partial_lse.shape}")
    check(output.is_contiguous() and partial_output.is_contiguous(), "results must be contiguous")
    check(len(starts) == len(tokens) + 1, f"{len(starts)} starts for {len(tokens)} tokens")
    launch(
        kernel, (len(tokens) * num_heads,),
        partial_output, partial_lse, sinks, tokens, starts, output,
        NUM_HEADS=num_heads, VALUE_DIM=value_dim, HAS_SINKS=sinks is not None,
        BLOCK_P=PARTIALS_AT_ONCE, BLOCK_V=triton.next_power_of_2(value_dim), num_warps=4,
    )  # fmt: skip


def _example(value_dim: int, dtype: torch.dtype, has_sinks: bool) -> None:
    merge_partials(
        without_memory(512, 32, value_dim, dtype=torch.float32),
        without_memory(512, 32, dtype=torch.float32),
        without_memory(256, dtype=torch.int32),
        without_memory(257, dtype=torch.int32),
        without_memory(32, dtype=dtype) if has_sinks else None,
        without_memory(256, 32, value_dim, dtype=dtype),
    )


EXAMPLES = (
    Example("heads of 128", lambda dtype: _example(128, dtype, has_sinks=False)),
    Example("heads of 80, sinks", lambda dtype: _example(80, dtype, has_sinks=True)),
    Example("heads of 256", lambda dtype: _example(256, dtype, has_sinks=False)),
)
