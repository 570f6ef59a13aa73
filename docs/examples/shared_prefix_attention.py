"""What attending to shared prefixes together saves: one decode step of one layer, on the CPU.

    python docs/examples/shared_prefix_attention.py [--groups 16] [--sequences 8] [--prefix 1024]
        [--heads 9] [--kv-heads 3]

Three ways to the same result: runs of blocks that sequences share are read together; each sequence reads them by
itself, from the same blocks; each sequence has a copy of its own, as without a prefix cache. Every layer has a cache of
its own, so that what one reads has to come from memory.
"""

import argparse
import time

import torch

from batchpaged.attention.backend import AttentionBackend, AttentionParams
from batchpaged.attention.cpu import CpuAttention
from batchpaged.attention.layer_shape import LayerShape
from batchpaged.attention.reference import TorchAttention
from batchpaged.attention.sharing import ALWAYS, NEVER
from batchpaged.engine.build import default_num_threads
from batchpaged.engine.step import SequenceStep, StepPlan
from batchpaged.kernels.cpu import jit

BLOCK_SIZE = 16
NUM_LAYERS = 8
NUM_TRIALS = 7
HEAD_DIM = 64


def decode_step(num_groups: int, num_members: int, num_prefix_blocks: int, has_copies: bool) -> tuple[StepPlan, int]:
    """-> (each sequence: a prefix and one token in a block of its own, number of blocks)"""
    sequences, slots, next_block = [], [], 0
    for member in range(num_groups * num_members):
        if has_copies or member % num_members == 0:
            prefix = tuple(range(next_block, next_block + num_prefix_blocks))
            next_block += num_prefix_blocks
        sequences.append(SequenceStep(member, 1, num_prefix_blocks * BLOCK_SIZE + 1, (*prefix, next_block), None))
        slots.append(next_block * BLOCK_SIZE)
        next_block += 1
    zeros = (0,) * len(sequences)
    return StepPlan(zeros, zeros, tuple(slots), tuple(sequences), ()), next_block


def milliseconds(backend: AttentionBackend, plan: StepPlan, num_heads: int) -> float:
    """The best of some steps, per layer; the first step may have to compile."""
    generator = torch.Generator().manual_seed(0)
    num_kv_heads = backend.keys[0].shape[0]
    query, key, value = (
        torch.randn(plan.num_tokens, heads, HEAD_DIM, generator=generator).transpose(0, 1)  # as models hand them over
        for heads in (num_heads, num_kv_heads, num_kv_heads)
    )
    for cache in (*backend.keys, *backend.values):
        cache.normal_(generator=generator)
    best = float("inf")
    for _ in range(NUM_TRIALS):
        backend.begin(plan)
        started = time.perf_counter()
        for layer in range(NUM_LAYERS):
            backend.attend(layer, query, key, value, AttentionParams(HEAD_DIM**-0.5, None, None, None))
        best = min(best, time.perf_counter() - started)
    return best / NUM_LAYERS * 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--sequences", type=int, default=8, help="in each group")
    parser.add_argument("--prefix", type=int, default=1024, help="tokens, rounded down to whole blocks")
    parser.add_argument("--heads", type=int, default=9, help="of queries; SmolLM2-135M's by default")
    parser.add_argument("--kv-heads", type=int, default=3, help="of keys and values")
    options = parser.parse_args()
    torch.set_num_threads(default_num_threads(1))
    jit.set_num_threads(default_num_threads(1))
    layers = (LayerShape(options.kv_heads, HEAD_DIM, HEAD_DIM),) * NUM_LAYERS
    num_blocks = options.prefix // BLOCK_SIZE
    for name, has_copies, rule in (("together", False, ALWAYS), ("each alone", False, NEVER), ("copies", True, NEVER)):
        plan, total = decode_step(options.groups, options.sequences, num_blocks, has_copies)
        cpu = milliseconds(CpuAttention(layers, total, BLOCK_SIZE, rule), plan, options.heads)
        reference = milliseconds(TorchAttention(layers, total, BLOCK_SIZE, torch.float32, rule=rule), plan, options.heads)
        print(f"{name:12} kernels {cpu:7.2f} ms per layer   torch operations {reference:7.2f} ms per layer")


if __name__ == "__main__":
    main()
