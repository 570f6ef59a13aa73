"""Which backend an engine gets, by what the pipeline asks for, device, type and model."""

from pathlib import Path

import pytest
import torch
from engine.test_build import build_from
from tiny_models import save_tiny

from batchpaged.attention.layer_shape import LayerShape
from batchpaged.attention.sharing import NEVER
from batchpaged.config import EngineConfig
from batchpaged.engine import attention_check, attention_choice
from batchpaged.engine.attention_check import check_attention
from batchpaged.engine.attention_choice import can_be_batch_invariant, choose_attention
from batchpaged.errors import ConfigError
from batchpaged.kernels.triton.paged_attention.tiling import BATCH_INVARIANT
from batchpaged.models.layers import AttentionLayer

F32, BF16 = torch.float32, torch.bfloat16


def layers(num_heads: int = 8, num_kv_heads: int = 2) -> tuple[AttentionLayer, ...]:
    return (AttentionLayer(0, num_heads, LayerShape(num_kv_heads, 64, 64), None, None, None, has_sinks=False),)


@pytest.fixture(autouse=True)
def triton_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    set_triton(monkeypatch, object())


def set_triton(monkeypatch: pytest.MonkeyPatch, spec: object) -> None:
    for module in (attention_check, attention_choice):
        monkeypatch.setattr(module, "find_spec", lambda name: spec)


@pytest.mark.parametrize(
    ("options", "device", "dtype", "kind"),
    [
        ({}, "cpu", F32, "cpu"),
        ({"kv_dtype": "int8"}, "cpu", F32, "torch"),
        ({}, "cpu", BF16, "torch"),
        ({}, "cuda:1", BF16, "triton"),
        ({"kv_dtype": "fp8"}, "cuda:1", BF16, "triton"),
        ({}, "cuda:0", F32, "triton"),
        ({"attention": "torch"}, "cuda:0", BF16, "torch"),
        ({"attention": "torch"}, "cpu", F32, "torch"),
        ({"attention": "triton"}, "cuda:0", BF16, "triton"),
    ],
)
def test_choice(options: dict[str, str], device: str, dtype: torch.dtype, kind: str) -> None:
    assert choose_attention(EngineConfig(**options), device, dtype, layers()) == kind


def test_triton_runs_on_a_cpu_in_its_interpreter_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    check_attention("triton", "cpu")
    for value in ("0", ""):
        monkeypatch.setenv("TRITON_INTERPRET", value)
        with pytest.raises(ConfigError, match="engine.attention: triton needs a GPU, and engine.device is cpu; use auto or torch"):
            check_attention("triton", "cpu")


def test_without_the_package_auto_takes_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    set_triton(monkeypatch, None)
    assert choose_attention(EngineConfig(), "cuda:0", BF16, layers()) == "torch"
    with pytest.raises(ConfigError, match="needs the package triton"):
        check_attention("triton", "cuda:0")


@pytest.mark.parametrize(("dtype", "most"), [(BF16, 128), (F32, 64)])
def test_more_query_heads_for_a_kv_head_than_a_tile_has_rows(dtype: torch.dtype, most: int) -> None:
    assert choose_attention(EngineConfig(), "cuda:0", dtype, layers(2 * most, 2)) == "triton"
    assert choose_attention(EngineConfig(), "cuda:0", dtype, layers(2 * most + 2, 2)) == "torch"
    with pytest.raises(ConfigError, match=f"takes up to {most} query heads"):
        choose_attention(EngineConfig(attention="triton"), "cuda:0", dtype, layers(2 * most + 2, 2))


def test_batch_invariance_has_tiles_of_one_size() -> None:
    assert choose_attention(EngineConfig(batch_invariant=True), "cuda:0", BF16, layers(128, 2)) == "triton"
    with pytest.raises(ConfigError, match="engine.batch_invariant: at most 64 query heads"):
        choose_attention(EngineConfig(batch_invariant=True), "cuda:0", BF16, layers(130, 2))


@pytest.mark.parametrize(
    ("options", "device", "dtype", "is_possible"),
    [
        ({}, "cpu", F32, True),
        ({}, "cpu", BF16, False),
        ({"kv_dtype": "int8"}, "cpu", F32, False),
        ({"attention": "torch"}, "cpu", F32, False),
        ({"attention": "triton"}, "cpu", torch.float16, True),  # in the interpreter
        ({}, "cuda:0", BF16, True),
        ({"kv_dtype": "fp8"}, "cuda:0", F32, True),
        ({"attention": "torch"}, "cuda:0", BF16, False),
    ],
)
def test_where_logits_can_have_the_same_bits_in_any_batch(options: dict, device: str, dtype: torch.dtype, is_possible: bool) -> None:
    assert can_be_batch_invariant(EngineConfig(**options), device, dtype) == is_possible


def test_without_the_package_a_gpu_has_no_invariant_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    set_triton(monkeypatch, None)
    assert not can_be_batch_invariant(EngineConfig(), "cuda:0", BF16)
    assert can_be_batch_invariant(EngineConfig(), "cpu", F32)


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_an_engine_on_triton_in_the_interpreter(tmp_path: Path, batch_invariant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With batch_invariant its logits have been compared bit by bit once it is there."""
    triton = pytest.importorskip("batchpaged.attention.triton")
    monkeypatch.setattr("batchpaged.engine.build.LENGTHS", (1, 2))
    backend = build_from(save_tiny(tmp_path), attention="triton", batch_invariant=batch_invariant)._runner._backend
    assert isinstance(backend, triton.TritonAttention)
    assert (backend._tiling == BATCH_INVARIANT, backend._rule == NEVER) == (batch_invariant, batch_invariant)
