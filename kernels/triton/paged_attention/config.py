"""Sizes with which the kernel is compiled, by the GPU and the shape of a head."""

from dataclasses import dataclass

from batchpaged.kernels.triton.paged_attention.tiling import GROUP_ROWS, PREFILL_ROWS
from batchpaged.kernels.triton.targets import KIB, Target

FEWEST_KEYS = 16  # the least that a matrix instruction takes


@dataclass(frozen=True)
class KernelConfig:
    block_n: int  # keys of one pass of the loop, where all queries see all of them
    masked_block_n: int  # likewise, where there is a mask: it takes registers, and fewer keys are read in vain
    num_warps: int
    num_stages: int  # of the loop; a key passes three of them (block id, key, product), so 5 have two passes' keys on their way
    skips_mask: bool  # a loop of its own for keys that all queries see


def choose_config(target: Target, rows: int, padded_dim: int, num_bytes: int, is_quantised: bool) -> KernelConfig:
    """For tiles of `rows` rows; `padded_dim`: the larger one of keys and values; `num_bytes`: of one number of the queries.

    As many keys as leave no register spilled on sm_90 (the compile check tells), or fewer where shared memory is smaller.
    """
    is_wide = padded_dim > 128
    if rows < PREFILL_ROWS:
        block_n, masked_block_n, num_warps, num_stages = (32, 32, 4, 5) if is_wide else (64, 64, 4, 5)
    elif is_quantised:
        block_n, masked_block_n, num_warps, num_stages = (32, 32, 8, 5) if is_wide else (64, 64, 8, 5)
    else:
        block_n, masked_block_n, num_warps, num_stages = (64, 32, 8, 3) if is_wide else (128, 64, 8, 3)
    if target.backend == "hip":
        num_stages = 2
    while block_n > FEWEST_KEYS and _shared_memory(rows, block_n, num_stages, padded_dim, num_bytes) > target.shared_memory:
        block_n //= 2
    return KernelConfig(block_n, min(block_n, masked_block_n), num_warps, num_stages, skips_mask=rows >= GROUP_ROWS)


def _shared_memory(rows: int, block_n: int, num_stages: int, dim: int, num_bytes: int) -> int:
    """Bytes: queries, weights, keys and values of all passes under way, and what threads exchange."""
    return num_bytes * (rows * (dim + block_n) + 2 * block_n * dim * ((num_stages + 1) // 2)) + 2 * KIB
