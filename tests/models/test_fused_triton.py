"""The same for Triton kernels: exchanged modules compute what the originals do, and nothing else is exchanged."""

import copy
from collections.abc import Iterator

import pytest
import torch
from kernel_tensors import DEVICE
from models.test_fused import TOKENS, ClampedMlp, GatedNorm, Mlp, Norm, ScaledMlp, rotation_inputs
from tiny_models import tiny_model
from torch import nn
from torch.nn import functional as F
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen3 import modeling_qwen3

from batchpaged.models.exchange import FusedCounts
from batchpaged.models.fused_triton import fuse_triton, make_batch_invariant
from batchpaged.models.needed_rows import needing

MODULES = (modeling_llama, modeling_gpt_neox, modeling_gemma2, modeling_mistral, modeling_qwen3)


@pytest.fixture(autouse=True)
def _own_rotations() -> Iterator[None]:
    before = {module: module.apply_rotary_pos_emb for module in MODULES}
    yield
    for module, function in before.items():
        module.apply_rotary_pos_emb = function


@torch.inference_mode()
def logits(model: nn.Module) -> torch.Tensor:
    return model(input_ids=TOKENS.to(DEVICE), use_cache=False).logits


@pytest.mark.parametrize(
    ("name", "dtype", "tolerance", "counts"),
    [
        ("llama", torch.float32, 1e-5, FusedCounts(0, 3, 7)),
        ("llama", torch.float16, 2e-2, FusedCounts(0, 3, 7)),
        ("gemma2", torch.float32, 1e-5, FusedCounts(0, 4, 17)),  # another activation, another norm, four in each layer
        ("qwen3", torch.float32, 1e-5, FusedCounts(0, 3, 13)),  # norms of each head's query and key
        ("gpt_neox", torch.float32, 1e-5, FusedCounts(0, 0, 0)),  # rotates a part of each head
    ],
)
def test_logits_are_those_of_the_original(name: str, dtype: torch.dtype, tolerance: float, counts: FusedCounts) -> None:
    model = tiny_model(name).to(DEVICE, dtype)
    expected = logits(model)
    assert fuse_triton(model) == counts
    found = logits(model)
    assert found.dtype is dtype
    torch.testing.assert_close(found, expected, atol=tolerance * expected.abs().max().item(), rtol=tolerance)


def test_merged_weights_are_given_back() -> None:
    model = tiny_model("llama").to(DEVICE)
    fuse_triton(model)
    is_gone = {name for name, p in model.named_parameters() if p.isnan().any()}
    assert is_gone == {name for name, _ in model.named_parameters() if "gate_proj" in name or "up_proj" in name}


def test_the_last_mlp_is_computed_where_logits_are_wanted() -> None:
    model = tiny_model("llama").to(DEVICE)
    expected = logits(model)
    fuse_triton(model)
    rows = torch.tensor([3, 11], device=DEVICE)
    with needing(rows):
        torch.testing.assert_close(logits(model)[:, rows], expected[:, rows], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("module", "is_exchanged"),
    [
        (Mlp(), True),
        (Mlp(bias=True), True),
        (Mlp(lambda x: F.gelu(x, approximate="tanh")), True),
        (Mlp(F.gelu), False),
        (Mlp(F.relu), False),
        (ClampedMlp(), False),
        (ScaledMlp(), False),
        (Norm(), True),
        (Norm(offset=1.0), True),
        (Norm(offset=0.5), False),
        (Norm(epsilon=1e-5), False),  # its attribute says something else
        (GatedNorm(), False),
        (nn.RMSNorm(24, eps=1e-6), True),
        (nn.LayerNorm(24, bias=False), False),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_module_is_exchanged_if_it_computes_the_same(module: nn.Module, is_exchanged: bool, dtype: torch.dtype) -> None:
    """Tried in float32: in bfloat16 the two forms of GELU look alike."""
    module = copy.deepcopy(module).to(DEVICE, dtype)
    kept = module.forward.__func__ if hasattr(module.forward, "__func__") else None
    x = torch.randn(2, 3, 24, device=DEVICE, dtype=dtype)
    with torch.inference_mode():
        expected = module(x)
        counts = fuse_triton(nn.ModuleList([module]))
        assert counts.num_mlp + counts.num_norm == is_exchanged
        assert (getattr(module.forward, "__func__", None) is kept) == (not is_exchanged)
        tolerance = 1e-5 if dtype is torch.float32 else 2e-2
        torch.testing.assert_close(module(x), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("module", [nn.Linear(24, 10), nn.Linear(24, 10, bias=False), Mlp(bias=True), Mlp(F.relu, bias=True)])
def test_products_in_one_order_are_the_same_products(module: nn.Module) -> None:
    module = copy.deepcopy(module).to(DEVICE)
    x = torch.randn(2, 3, 24, device=DEVICE)
    with torch.inference_mode():
        expected = module(x)
        assert make_batch_invariant(nn.ModuleList([module])).num_linear > 0
        torch.testing.assert_close(module(x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "inputs",
    [rotation_inputs(), rotation_inputs(dim=32, rotated=8), rotation_inputs(batch=2)],
    ids=["whole heads", "part of each head", "two sequences"],
)
def test_rotation_of_anything_is_the_original_s(inputs: tuple[torch.Tensor, ...]) -> None:
    inputs = tuple(x.to(DEVICE) for x in inputs)
    original = modeling_gpt_neox.apply_rotary_pos_emb
    fuse_triton(tiny_model("gpt_neox").to(DEVICE))
    fused = modeling_gpt_neox.apply_rotary_pos_emb
    assert fused is not original
    with torch.inference_mode():
        torch.testing.assert_close(fused(*inputs), original(*inputs))


def test_rotation_of_other_devices_is_the_original_s() -> None:
    """The function is that of all models of a class in the process, of those that are not on this GPU too."""
    fuse_triton(tiny_model("llama").to(DEVICE))
    inputs = tuple(x.to("meta") for x in rotation_inputs())
    with torch.inference_mode():
        assert modeling_llama.apply_rotary_pos_emb(*inputs)[0].device.type == "meta"
