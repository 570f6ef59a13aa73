"""The last layer's MLP is computed where logits are wanted, and the logits there do not change."""

import copy

import torch
from tiny_models import tiny_model

from batchpaged.models.fused import fuse
from batchpaged.models.needed_rows import needed_rows, needing


def logits(model: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
    tokens = torch.arange(3, 15)[None]
    with torch.inference_mode():
        return model(input_ids=tokens, use_cache=False, logits_to_keep=rows).logits[0]


def test_logits_of_the_needed_rows_stay_and_only_they_are_computed() -> None:
    plain = tiny_model()
    fused = copy.deepcopy(plain)
    fuse(fused)
    rows = torch.tensor([2, 7, 11])
    seen = []
    down = fused.model.layers[-1].mlp.down_proj
    down.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape[-2]))
    with needing(rows):
        torch.testing.assert_close(logits(fused, rows), logits(plain, rows), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits(fused, rows), logits(plain, rows), atol=1e-4, rtol=1e-4)
    assert seen == [3, 12]


def test_it_is_over_with_the_block() -> None:
    with needing(torch.tensor([1])):
        assert needed_rows() is not None
    assert needed_rows() is None
