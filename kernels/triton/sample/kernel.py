"""The next token of each row, chosen from its logits; one program for a row, and only the token leaves it.

    1. best      the greatest logit; at temperature 0 it is the choice
    2. filters   top-k and top-p each become a bound, found by bisection: nothing is sorted; min-p is a bound by itself
    3. noise     the greatest of logit / temperature + Gumbel noise is a sample of the softmax

Tokens are ordered by key: the logit's bits as an integer of the same order, then the token id, so that of equal logits the one
with the lowest id comes first and no two keys are equal.
"""

import triton
import triton.language as tl


@triton.jit
def _logits(row, at, vocab_size):
    """float32 [BLOCK], finite or -infinity. NaN counts as -infinity: it must not keep a row from getting some token."""
    x = tl.load(row + at, mask=at < vocab_size, other=float("-inf")).to(tl.float32)
    x = tl.where(x == x, tl.minimum(x, 3.0e38), float("-inf"))
    return tl.where(x == 0, 0.0, x)  # -0.0 equals 0.0, its bits do not


@triton.jit
def _keys(x, at):
    """int64 [BLOCK], ordered as tokens are."""
    bits = x.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - at).to(tl.int64)


@triton.jit
def _above(row, vocab_size, key, greatest, inverse_temperature, BLOCK: tl.constexpr):
    """-> number and unnormalised probability of tokens above `key`."""
    counts, mass = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab_size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = _logits(row, at, vocab_size)
        is_above = (_keys(x, at) > key) & (at < vocab_size)
        counts += is_above.to(tl.int32)
        mass += tl.where(is_above, tl.exp((x - greatest) * inverse_temperature), 0.0)
    return tl.sum(counts), tl.sum(mass)


@triton.jit
def _bisect(row, vocab_size, bound, best_key, greatest, inverse_temperature, limit, COUNTS: tl.constexpr, BLOCK: tl.constexpr):
    """-> the key above which lie all tokens that have less than `limit` above them, in number or in probability.

    Tokens not above `bound` are gone already; with COUNTS there are at least `limit` above it. Ends when one token is left between
    the bounds, which is the last to be kept.
    """
    low, high = bound, best_key  # at least `limit` above low, less above high
    above_low, mass = _above(row, vocab_size, low, greatest, inverse_temperature, BLOCK)
    above_high = tl.zeros_like(above_low)
    if not COUNTS:
        limit = limit * mass
    while above_low - above_high > 1:
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        count, mass = _above(row, vocab_size, middle, greatest, inverse_temperature, BLOCK)
        measure = count.to(tl.float32) if COUNTS else mass
        if measure < limit:
            high, above_high = middle, count
        else:
            low, above_low = middle, count
    return low


@triton.jit
def _gumbel(seed, position, at):
    """float32 [BLOCK]: -log of an exponentially distributed number, from the row's seed, position and token id alone.

    The number is -log(1 - u): its small values, which decide, have all the precision that u has near 0.
    """
    zeros = at * 0
    random, _, _, _ = tl.philox(seed, at, zeros + position, zeros, zeros)
    u = (random.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    exponential = tl.where(u < 0.01, u * (1.0 + u * (0.5 + u * (1.0 / 3 + u * 0.25))), -tl.log(1.0 - tl.minimum(u, 0.9999999)))
    return -tl.log(exponential)


@triton.jit
def sample_kernel(
    logits, row_stride, temperatures, top_ks, top_ps, min_ps, seeds, positions, tokens, vocab_size, BLOCK: tl.constexpr
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64)
    row = logits + index * row_stride
    temperature = tl.load(temperatures + index)
    best_key = tl.full([], -0x7FFFFFFFFFFFFFFF, tl.int64)
    for start in range(0, vocab_size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        keys = _keys(_logits(row, at, vocab_size), at)
        best_key = tl.maximum(best_key, tl.max(tl.where(at < vocab_size, keys, -0x7FFFFFFFFFFFFFFF), 0))
    token = 0x7FFFFFFF - (best_key & 0x7FFFFFFF)
    if temperature > 0:
        greatest = tl.maximum(tl.load(row + token).to(tl.float32), -3.0e38)
        greatest = tl.where(greatest == greatest, tl.minimum(greatest, 3.0e38), -3.0e38)
        inverse = 1.0 / temperature
        bound = tl.full([], -0x7FFFFFFFFFFFFFFF, tl.int64)
        top_k, top_p = tl.load(top_ks + index), tl.load(top_ps + index)
        if top_k < vocab_size:
            bound = _bisect(row, vocab_size, bound, best_key, greatest, inverse, top_k.to(tl.float32), True, BLOCK)
        if top_p < 1:
            bound = _bisect(row, vocab_size, bound, best_key, greatest, inverse, top_p, False, BLOCK)
        least = tl.log(tl.load(min_ps + index))  # of a logit beside the greatest, over the temperature
        seed, position = tl.load(seeds + index), tl.load(positions + index).to(tl.int32)
        best_score = tl.full([], float("-inf"), tl.float32)
        for start in range(0, vocab_size, BLOCK):
            at = start + tl.arange(0, BLOCK)
            x = _logits(row, at, vocab_size)
            relative = (x - greatest) * inverse
            is_kept = (_keys(x, at) > bound) & (relative >= least) & (at < vocab_size)
            scores = tl.where(is_kept, relative + _gumbel(seed, position, at), float("-inf"))
            score, place = tl.max(scores, 0, return_indices=True)
            if score > best_score:
                best_score, token = score, (start + place).to(tl.int64)
    tl.store(tokens + index, token)
