"""Exchanged modules compute what the originals do, and nothing else is exchanged."""

from collections.abc import Iterator

import pytest
import torch
from engine.real_engine import Limits, build_engine, completions
from tiny_models import TINY, tiny_model
from torch import nn
from torch.nn import functional as F
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.llama import modeling_llama

from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.models.fused import FusedCounts, fuse

pytestmark = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="weights are packed by MKL")

TOKENS = torch.tensor([[1, 40, 7, 99, 200, 31, 5, 5, 64, 120, 11, 8]])


@pytest.fixture(autouse=True)
def _own_rotations() -> Iterator[None]:
    """What a test exchanges in transformers' files does not stay there."""
    before = {module: module.apply_rotary_pos_emb for module in (modeling_llama, modeling_gpt_neox)}
    yield
    for module, function in before.items():
        module.apply_rotary_pos_emb = function


@torch.inference_mode()
def logits(model: nn.Module) -> torch.Tensor:
    return model(input_ids=TOKENS, use_cache=False).logits


@pytest.mark.parametrize("name", TINY)
def test_logits_are_those_of_the_original(name: str) -> None:
    model = tiny_model(name)
    expected = logits(model)
    assert fuse(model).num_linear > 0 or name.startswith("gpt")  # GPT-2's layers are of another class
    torch.testing.assert_close(logits(model), expected, atol=1e-5 * expected.abs().max().item(), rtol=1e-5)


def test_all_of_a_llama_model_is_exchanged() -> None:
    """Per layer: query, key, value, output, down; gate and up belong to the MLP. Two norms, and one at the end."""
    assert fuse(tiny_model("llama")) == FusedCounts(num_linear=3 * 5 + 1, num_mlp=3, num_norm=3 * 2 + 1)
    assert hasattr(modeling_llama.apply_rotary_pos_emb, "original")


def test_fusing_twice_changes_nothing() -> None:
    model = tiny_model("llama")
    fuse(model)
    expected = logits(model)
    rotation = modeling_llama.apply_rotary_pos_emb
    fuse(tiny_model("llama", seed=1))
    assert modeling_llama.apply_rotary_pos_emb is rotation
    torch.testing.assert_close(logits(model), expected)


def test_greedy_tokens_are_those_without() -> None:
    prompts = [[1, *range(10, 40), last] for last in (50, 60, 70)]
    plain, fused = tiny_model("llama"), tiny_model("llama")
    fuse(fused)
    outputs = [completions(build_engine(m, Limits()), prompts, SamplingParams(max_tokens=6)) for m in (plain, fused)]
    assert [c.token_ids for c in outputs[0]] == [c.token_ids for c in outputs[1]]


def test_a_tied_embedding_stays_and_packed_weights_are_given_back() -> None:
    model = tiny_model("llama:tied")
    embedding = model.get_input_embeddings().weight.clone()
    fuse(model)
    assert torch.equal(model.get_input_embeddings().weight, embedding)
    weight = model.model.layers[0].self_attn.q_proj.weight
    assert weight.untyped_storage().nbytes() == 4 and weight.shape == (64, 64) and weight.dtype is torch.float32
    assert {name for name, p in model.named_parameters() if not p.isnan().any()} == {
        "model.embed_tokens.weight",
        *(name for name, _ in model.named_parameters() if "norm" in name),
    }


class Mlp(nn.Module):
    def __init__(self, activation=F.silu, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(24, 40, bias=bias), nn.Linear(24, 40, bias=bias)
        self.down_proj = nn.Linear(40, 24, bias=bias)
        self.act_fn = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class ClampedMlp(Mlp):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)).clamp(max=7.0) * self.up_proj(x))


class ScaledMlp(Mlp):
    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return super().forward(x) * scale


class Norm(nn.Module):
    def __init__(self, offset: float = 0.0, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps, self.offset, self.used = nn.Parameter(torch.rand(24) + 0.5), 1e-6, offset, epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (x.pow(2).mean(-1, keepdim=True) + self.used).rsqrt() * (self.weight + self.offset)


class GatedNorm(Norm):
    def forward(self, x: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x) if gate is None else super().forward(x * gate)


class OwnLinear(nn.Linear):
    pass


def fused_counts(*modules: nn.Module) -> tuple[int, int, int]:
    torch.manual_seed(0)
    counts = fuse(nn.ModuleList(modules))
    return counts.num_linear, counts.num_mlp, counts.num_norm


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_rows", [0, 1, 7, 512, 513, 1100])
def test_a_gated_mlp_of_any_number_of_rows(num_rows: int, bias: bool) -> None:
    mlp, x = Mlp(bias=bias), torch.randn(1, num_rows, 24)
    with torch.inference_mode():
        expected = mlp(x), mlp(x[0])
        assert fused_counts(mlp) == (1, 1, 0)
        torch.testing.assert_close(mlp(x), expected[0])
        torch.testing.assert_close(mlp(x[0]), expected[1])


@pytest.mark.parametrize(
    "mlp",
    [Mlp(F.gelu), Mlp(F.relu), Mlp(nn.Sigmoid()), ClampedMlp(), ScaledMlp()],
    ids=["gelu", "relu", "sigmoid", "clamped", "scaled"],
)
def test_another_mlp_is_left_alone_and_its_layers_are_packed(mlp: Mlp) -> None:
    x = torch.randn(3, 24)
    with torch.inference_mode():
        expected = mlp(x)
        assert fused_counts(mlp) == (3, 0, 0)
        torch.testing.assert_close(mlp(x), expected)


def test_an_mlp_that_shares_a_layer_with_another_module_keeps_it() -> None:
    first, second, x = Mlp(), Mlp(), torch.randn(3, 24)
    second.gate_proj = first.gate_proj
    with torch.inference_mode():
        expected = first(x), second(x)
        assert fused_counts(first, second) == (5, 0, 0)
        torch.testing.assert_close((first(x), second(x)), expected)


def test_layers_that_share_a_weight() -> None:
    first, second, x = nn.Linear(24, 8), nn.Linear(24, 8), torch.randn(3, 24)
    second.weight = first.weight
    with torch.inference_mode():
        expected = first(x), second(x)
        assert fused_counts(first, second) == (2, 0, 0)
        torch.testing.assert_close((first(x), second(x)), expected)


def test_a_weight_that_is_not_contiguous() -> None:
    layer, x = nn.Linear(24, 8), torch.randn(3, 24)
    layer.weight = nn.Parameter(torch.randn(24, 8).t())
    with torch.inference_mode():
        expected = layer(x)
        assert fused_counts(layer) == (1, 0, 0)
        torch.testing.assert_close(layer(x), expected)


def test_a_class_derived_from_linear_is_left_alone() -> None:
    assert fused_counts(OwnLinear(24, 8)) == (0, 0, 0)


def test_a_packed_weight_that_is_read_past_its_module_gives_nan() -> None:
    layer = nn.Linear(24, 8)
    fused_counts(layer)
    with torch.inference_mode():
        assert F.linear(torch.randn(3, 24), layer.weight).isnan().all()


@pytest.mark.parametrize(
    ("norm", "num_norm"),
    [
        (Norm(), 1),
        (Norm(offset=1.0), 0),
        (Norm(epsilon=1e-5), 0),  # its attribute says something else
        (GatedNorm(), 0),
        (nn.LayerNorm(24, bias=False), 0),
        (nn.LayerNorm(24), 0),
        (nn.RMSNorm(24, eps=1e-6), 1),
    ],
)
def test_norms(norm: nn.Module, num_norm: int) -> None:
    x = torch.randn(2, 3, 5, 24).transpose(1, 2)
    with torch.inference_mode():
        expected = norm(x)
        assert fused_counts(norm) == (0, 0, num_norm)
        torch.testing.assert_close(norm(x), expected)


def rotation_inputs(dim: int = 8, rotated: int = 8, batch: int = 1) -> tuple[torch.Tensor, ...]:
    shapes = ((batch, 4, 5, dim), (batch, 2, 5, dim), (1, 5, rotated), (1, 5, rotated))
    return tuple(torch.randn(shape) for shape in shapes)


@pytest.mark.parametrize(
    "inputs",
    [
        rotation_inputs(),
        rotation_inputs(dim=32, rotated=8),
        rotation_inputs(batch=2),
        tuple(x.double() for x in rotation_inputs()),
    ],
    ids=["whole heads", "part of each head", "two sequences", "float64"],
)
def test_rotation_of_anything_is_the_original_s(inputs: tuple[torch.Tensor, ...]) -> None:
    original = modeling_gpt_neox.apply_rotary_pos_emb
    fuse(tiny_model("gpt_neox"))
    fused = modeling_gpt_neox.apply_rotary_pos_emb
    assert fused is not original
    with torch.inference_mode():
        torch.testing.assert_close(fused(*inputs), original(*inputs))


def test_rotation_in_training_has_gradients() -> None:
    fuse(tiny_model("llama"))
    q, k, cosine, sine = rotation_inputs()
    modeling_llama.apply_rotary_pos_emb(q.requires_grad_(), k, cosine, sine)[0].sum().backward()
    assert q.grad is not None


def test_rotation_along_another_axis_is_the_original_s() -> None:
    original = modeling_llama.apply_rotary_pos_emb
    fuse(tiny_model("llama"))
    q, k, cosine, sine = rotation_inputs()
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    with torch.inference_mode():
        found = modeling_llama.apply_rotary_pos_emb(q, k, cosine, sine, unsqueeze_dim=2)
        torch.testing.assert_close(found, original(q, k, cosine, sine, unsqueeze_dim=2))


def test_interleaved_rotation_is_left_alone() -> None:
    """GLM rotates neighbouring pairs."""
    from transformers.models.glm import modeling_glm

    original = modeling_glm.apply_rotary_pos_emb
    fuse(tiny_model("glm"))
    assert modeling_glm.apply_rotary_pos_emb is original


def test_without_packed_weights_nothing_is_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert fuse(tiny_model("llama")) == FusedCounts(0, 0, 0)
