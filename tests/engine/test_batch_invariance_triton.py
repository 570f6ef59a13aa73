"""engine.batch_invariant on Triton's kernels, which a GPU runs: in the interpreter, with all products by the ordered kernel."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine.test_batch_invariance import logits_of
from engine.test_build import build_from
from tiny_models import TINY, save_tiny, tiny_model
from transformers import PreTrainedConfig

pytest.importorskip("triton")

from batchpaged.config import EngineConfig  # noqa: E402
from batchpaged.engine import attention_choice, build  # noqa: E402
from batchpaged.engine.attention_choice import attention_backend  # noqa: E402
from batchpaged.engine.engine import Engine  # noqa: E402
from batchpaged.engine.gpu_build import graph_runner  # noqa: E402
from batchpaged.engine.invariance import check_batch_invariance  # noqa: E402
from batchpaged.engine.replay import PlainReplay  # noqa: E402
from batchpaged.errors import ModelError  # noqa: E402
from batchpaged.models.exchange import FusedCounts  # noqa: E402
from batchpaged.models.fused_triton import make_batch_invariant  # noqa: E402
from batchpaged.models.layers import attention_layers  # noqa: E402

COMMON = [1, *range(10, 27)]  # more than a block
PROMPTS = [[7], [*COMMON, 50], [*COMMON, *range(90, 105)], [*range(60, 65)]]
pytestmark = pytest.mark.filterwarnings("ignore:overflow")  # the interpreter's: exp of what is far below 0
SETTINGS = {"attention": "triton", "batch_invariant": True, "block_size": 16, "kv_cache": 64}


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    """The longest prompt's context is cut, as those of thousands of tokens are. The check at start takes two prompts."""
    tiling = replace(attention_choice.BATCH_INVARIANT, split_keys=32, key_alignment=32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_choice, "BATCH_INVARIANT", tiling)
        patch.setattr(build, "LENGTHS", (1, 3))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def one_layer() -> PreTrainedConfig:
        config = TINY["llama"]()
        config.num_hidden_layers = 1
        return config

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TINY, "one layer", one_layer)
        return save_tiny(tmp_path_factory.mktemp("invariance") / "model", "one layer")


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[torch.Tensor]:
    """Each prompt by itself, without a prefix cache."""
    engine = build_from(folder, **SETTINGS, prefix_cache=False)
    return [x for prompt in PROMPTS for x in logits_of(engine, [prompt])]


def with_static_steps(engine: Engine) -> Engine:
    """As on a GPU: decode steps are padded to a bucket, and read static buffers."""
    model = engine._runner._model
    backend = attention_backend(EngineConfig(**SETTINGS), attention_layers(model), 65, model.dtype, "cpu")
    engine._runner = graph_runner(model, backend, 16, 8, PlainReplay)
    return engine


@pytest.mark.parametrize(("size", "options", "is_static"), [(4, {}, False), (3, {}, True), (4, {"max_batch_tokens": 11}, False)])
def test_logits_have_the_same_bits(folder: Path, alone: list[torch.Tensor], size: int, options: dict, is_static: bool) -> None:
    engine = build_from(folder, **SETTINGS, **options)
    engine = with_static_steps(engine) if is_static else engine
    found = [x for start in range(0, len(PROMPTS), size) for x in logits_of(engine, PROMPTS[start : start + size])]
    assert all(torch.equal(x, y) for x, y in zip(found, alone, strict=True))


def test_16_and_8_bits_pass_the_check_at_start(folder: Path) -> None:
    """Modules are exchanged for exactness here, whatever `fused_modules` says."""
    model = build_from(folder, **SETTINGS, dtype="float16", kv_dtype="int8", fused_modules=False)._runner._model
    assert all("forward" in vars(layer) for layer in (model.lm_head, model.model.norm, model.model.layers[0].self_attn.q_proj))


def test_a_decode_step_is_checked_as_well(folder: Path) -> None:
    engine = with_static_steps(build_from(folder, **SETTINGS))
    check_batch_invariance(engine._runner, 264, 64, 16, 256, (1, 3))
    decode = engine._runner._decode_steps
    compute = decode.logits
    decode.logits = lambda *arguments: compute(*arguments) * (1 + 1e-6)
    with pytest.raises(ModelError, match="engine.batch_invariant: a layer of this model"):
        check_batch_invariance(engine._runner, 264, 64, 16, 256, (1, 3))


def test_all_products_are_exchanged() -> None:
    assert make_batch_invariant(tiny_model("llama")) == FusedCounts(3 * 5 + 1, 3, 7)


@pytest.mark.parametrize(("name", "weight"), [("mixtral", "gate"), ("gpt2", "c_attn")])
def test_a_model_that_multiplies_in_another_way_is_refused(name: str, weight: str) -> None:
    with pytest.raises(ModelError, match=rf"engine.batch_invariant: .*{weight}.* is no linear layer"):
        make_batch_invariant(tiny_model(name))
