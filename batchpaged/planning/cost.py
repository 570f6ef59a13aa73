"""What a row costs: the one model by which the planned order is cut into units and units are shared out.

Costs are in prefilled tokens: 1 is what one prompt token takes in the model's matrix products.
"""

from dataclasses import dataclass

import numpy as np

# A decoded token against a prefilled one where the model's size is not known: it needs logits as well.
DECODE_WEIGHT = 1.3


@dataclass(frozen=True)
class ModelCost:
    """What the planner has to know of a model."""

    flops_per_prefill_token: float  # matrix products, without attention over the context
    flops_per_decode_token: float  # the same and the logits
    kv_bytes_per_token: int  # keys and values of all layers
    flops_per_context_token: float = 0.0  # attention of one token over one token of its context, in all layers


@dataclass(frozen=True)
class CostModel:
    """Row costs from prompt lengths, shared lengths and a guess of the completion's length."""

    num_decode_tokens: float  # expected per row
    is_greedy: bool  # exact duplicates are then computed once, and cost nothing
    decode: float = DECODE_WEIGHT  # of one decoded token
    attention: float = 0.0  # of one token over one token of its context

    def num_prefilled(self, num_tokens: np.ndarray, num_shared: np.ndarray) -> np.ndarray:
        """Prompt tokens of each row that are computed at best: int64 [n]. The last one always is, unless the row is a
        duplicate of a row computed once."""
        is_duplicate = num_shared == num_tokens
        return np.where(is_duplicate, 0 if self.is_greedy else np.minimum(num_tokens, 1), num_tokens - num_shared)

    def costs(self, num_tokens: np.ndarray, num_shared: np.ndarray) -> np.ndarray:
        """Of each row: float64 [n]. `num_shared` as in Order; rows equal to the one before share all their tokens."""
        num_prefilled = self.num_prefilled(num_tokens, num_shared)
        n, start = num_tokens.astype(float), (num_tokens - num_prefilled).astype(float)
        d = self.num_decode_tokens
        # Token i of a sequence attends to i tokens: prefilled ones start + 1 to n, decoded ones n + 1 to n + d.
        num_pairs = (n * (n + 1) - start * (start + 1)) / 2 + d * n + d * (d + 1) / 2
        costs = num_prefilled + self.decode * d + self.attention * num_pairs
        return np.where(num_shared == num_tokens, 0.0, costs) if self.is_greedy else costs


def cost_model(model: ModelCost | None, num_decode_tokens: float, is_greedy: bool) -> CostModel:
    """With the constants of the model where it is known."""
    if model is None or not model.flops_per_prefill_token:
        return CostModel(num_decode_tokens, is_greedy)
    unit = model.flops_per_prefill_token
    return CostModel(
        num_decode_tokens, is_greedy, model.flops_per_decode_token / unit, model.flops_per_context_token / unit
    )


def expected_decode_tokens(max_tokens: int, is_forced: bool) -> float:
    """Before any completion is known: all of `max_tokens` if its end is ignored, else half, as the scheduler guesses."""
    return float(max_tokens) if is_forced else max_tokens / 2


def floor_flops(num_tokens: np.ndarray, num_shared: np.ndarray, num_generated: int, cost: ModelCost) -> float:
    """Operations without which no program computes these prompts and `num_generated` tokens after each.

    Every shared token is computed once, and each token attends to all before it. A completion's first token comes from
    the prompt's last one, so the layers decode one token fewer than the output head gives.
    """
    rows = len(num_tokens)
    head = cost.flops_per_decode_token - cost.flops_per_prefill_token
    num_layer_tokens = float((num_tokens - num_shared).sum()) + rows * (num_generated - 1)
    n, start, decoded = num_tokens.astype(float), num_shared.astype(float), float(num_generated - 1)
    num_pairs = (n * (n + 1) - start * (start + 1)) / 2 + decoded * n + decoded * (decoded + 1) / 2
    matrix_products = num_layer_tokens * cost.flops_per_prefill_token + rows * num_generated * head
    return matrix_products + float(num_pairs.sum()) * cost.flops_per_context_token
