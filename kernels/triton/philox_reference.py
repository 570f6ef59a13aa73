"""Philox 4x32 with ten rounds (Salmon et al., 2011) in torch operations: random bits as a function of key and counter."""

import torch

MASK = 0xFFFFFFFF
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85
NUM_ROUNDS = 10


def philox(seeds: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The first of four words: seeds [n] int64 (as bits), counters (first, second, 0, 0) [n, m] int64 -> [n, m] int64."""
    keys = [(seeds & MASK)[:, None], ((seeds >> 32) & MASK)[:, None]]
    words = [first & MASK, second & MASK, torch.zeros_like(first), torch.zeros_like(first)]
    for _ in range(NUM_ROUNDS):
        high_a, low_a = _multiply(words[0], MULTIPLIERS[0])
        high_b, low_b = _multiply(words[2], MULTIPLIERS[1])
        words = [high_b ^ words[1] ^ keys[0], low_b, high_a ^ words[3] ^ keys[1], low_a]
        keys = [(key + step) & MASK for key, step in zip(keys, WEYL, strict=True)]
    return words[0]


def _multiply(word: torch.Tensor, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
    """-> high and low 32 bits of a product of 32-bit numbers, without a 64-bit overflow."""
    low = (word & 0xFFFF) * factor
    high = (word >> 16) * factor + (low >> 16)
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)
