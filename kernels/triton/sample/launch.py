"""Checks, grid and configuration of sampling."""

from dataclasses import dataclass

import torch
import triton

from batchpaged.kernels.triton.launching import Example, check, launch, without_memory
from batchpaged.kernels.triton.sample.kernel import sample_kernel

BLOCK = 2048  # most logits at a time
MAX_VOCAB_SIZE = 1 << 24  # numbers of tokens are counted in float32


@dataclass(frozen=True)
class SamplingRows:
    """How each row's token is chosen; all [num_rows], on the device of the logits."""

    temperatures: torch.Tensor  # float32; 0: greedy
    top_ks: torch.Tensor  # int32, at least 1; vocab_size or more: all
    top_ps: torch.Tensor  # float32 in (0, 1]; 1: all
    min_ps: torch.Tensor  # float32 in [0, 1]; 0: all
    seeds: torch.Tensor  # int64, the bits of the row's own seed
    positions: torch.Tensor  # int32, that the new token takes in its sequence


def sample(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """logits [num_rows, vocab_size], last dimension contiguous -> token ids [num_rows] int64. Raises ValueError.

    Greedy rows get the lowest id of the greatest logit. The others get a sample of what top-k, then top-p, then min-p leave; it
    depends on the row's logits, seed and position alone.
    """
    num_rows, vocab_size = logits.shape
    check(logits.stride(1) == 1 and 1 <= vocab_size <= MAX_VOCAB_SIZE, f"logits of at most {MAX_VOCAB_SIZE} contiguous tokens")
    for name, column in vars(rows).items():
        check(column.shape == (num_rows,) and column.is_contiguous(), f"{name} {tuple(column.shape)} for {num_rows} rows")
    check(rows.seeds.dtype is torch.int64, f"seeds must be int64, not {rows.seeds.dtype}")
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    launch(
        sample_kernel, (num_rows,),
        logits, logits.stride(0), rows.temperatures, rows.top_ks, rows.top_ps, rows.min_ps, rows.seeds, rows.positions,
        tokens, vocab_size, BLOCK=min(BLOCK, triton.next_power_of_2(vocab_size)), num_warps=8,
    )  # fmt: skip
    return tokens


def _example(logits_dtype: torch.dtype) -> None:
    floats, ints = without_memory(64, dtype=torch.float32), without_memory(64, dtype=torch.int32)
    rows = SamplingRows(floats, ints, floats, floats, without_memory(64, dtype=torch.int64), ints)
    sample(without_memory(64, 128_256, dtype=logits_dtype), rows)


EXAMPLES = (
    Example("128256 tokens", _example),
    Example("128256 tokens, float32", lambda dtype: _example(torch.float32)),
)
