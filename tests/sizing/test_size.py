"""Sizes of models against published figures, the tensors that an engine allocates, and counting by hand."""

import json
from pathlib import Path

import pytest
import torch
from tiny_models import TINY, WINDOW, tiny_model
from transformers import LlamaConfig

import batchpaged
from batchpaged.attention.kv_array import KvArray
from batchpaged.errors import ConfigError, ModelError
from batchpaged.models.kv_shape import layer_shapes
from batchpaged.models.shell import num_parameters
from batchpaged.sizing.size import kv_cache_bytes, size_model

CONFIGS = Path(__file__).resolve().parents[2] / "docs" / "examples" / "configs"
GIB = 2**30


@pytest.mark.parametrize(
    ("name", "parameters", "kv_bytes"),
    [
        ("llama-3-8b", 8_030_261_248, 131_072),
        ("llama-3-70b", 70_553_706_496, 327_680),
        ("llama-2-70b", 68_976_648_192, 327_680),
        ("gemma-2-9b", 9_241_705_984, 344_064),
    ],
)
def test_the_examples_have_their_published_sizes(name: str, parameters: int, kv_bytes: int) -> None:
    size = size_model(CONFIGS / f"{name}.json")
    assert (size.num_parameters, size.weights, size.bytes_per_token) == (parameters, 2 * parameters, kv_bytes)


@pytest.mark.parametrize("name", TINY)
def test_parameters_are_counted_without_weights(name: str) -> None:
    """Of every architecture: tied weights once, and no fewer than the real model has."""
    model = tiny_model(name)
    assert num_parameters(model.config) == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("kv_dtype", ["auto", "int8", "fp8"])
@pytest.mark.parametrize("name", ["llama", "deepseek_v3", "gemma4_text"])
def test_a_block_has_the_bytes_of_the_tensors_that_hold_it(name: str, kv_dtype: str) -> None:
    config = TINY[name]()
    allocated = 0
    for shape in layer_shapes(config):
        for dim in (shape.head_dim, shape.value_dim):
            array = KvArray((shape.num_kv_heads, 1, 16, dim), torch.float16, kv_dtype, "cpu")
            allocated += array.numbers.nbytes + (0 if array.scales is None else array.scales.nbytes)
    assert kv_cache_bytes(config, 16, dtype="float16", kv_dtype=kv_dtype) == allocated


def test_sequences_are_rounded_up_to_blocks() -> None:
    config = CONFIGS / "llama-3-8b.json"
    assert kv_cache_bytes(config, 17, 3, block_size=16) == 3 * 32 * 131_072
    assert kv_cache_bytes(config, 17, 3) == 3 * 17 * 131_072
    assert size_model(config, seq_len=17).sequence == 32 * 131_072


def test_what_fits_is_what_weights_and_a_step_leave() -> None:
    size = size_model(CONFIGS / "llama-3-8b.json", gpu_memory=80 * GIB, seq_len=8192)
    assert size.fit.kv_bytes == 72 * GIB - size.weights - GIB
    assert size.fit.num_sequences == size.fit.num_blocks // 512 == 56
    none = size_model(CONFIGS / "llama-3-70b.json", gpu_memory=80 * GIB)
    assert (none.fit.kv_bytes, none.fit.num_blocks, none.fit.num_sequences) == (0, 0, 0)


def test_grouped_heads_and_windows_are_told() -> None:
    size = size_model(TINY["gemma2"](), dtype="float32", seq_len=64, block_size=8)
    assert size.bytes_per_token_ungrouped == 2 * size.bytes_per_token
    # Two of four layers would keep the block that a window of 8 begins in, and the one that it ends in.
    assert (size.windows, WINDOW) == ((8, None, 8, None), 8)
    assert size.windowed_sequence == size.sequence * (2 * 8 + 2 * 2) // (4 * 8)
    # Of blocks of 7 that begin and end anywhere, two hold a token and the 7 before it.
    size = size_model(TINY["gemma2"](), seq_len=63, block_size=7)
    assert size.windowed_sequence == size.sequence * (2 * 9 + 2 * 2) // (4 * 9)


def test_a_configuration_may_come_in_several_ways(tmp_path: Path) -> None:
    content = json.loads((CONFIGS / "llama-3-8b.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(content))
    sources = [tmp_path, tmp_path / "config.json", str(tmp_path), content, LlamaConfig.from_dict(dict(content))]
    assert {batchpaged.kv_cache_bytes(source) for source in sources} == {131_072}


def test_types_follow_the_request_and_else_the_checkpoint() -> None:
    config = CONFIGS / "llama-2-70b.json"
    assert size_model(config).dtype == "float16"
    assert kv_cache_bytes(config, dtype="float32") == 2 * kv_cache_bytes(config)
    assert kv_cache_bytes(config, kv_dtype="int8") == 80 * 8 * (2 * 128 + 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seq_len": 0}, "seq_len: 0"),
        ({"num_sequences": 1.5}, "num_sequences: 1.5"),
        ({"seq_len": True}, "seq_len: True"),
        ({"dtype": "float8"}, "dtype: 'float8'"),
        ({"kv_dtype": "int4"}, "kv_dtype: 'int4'"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kv_cache_bytes(CONFIGS / "llama-3-8b.json", **arguments)


def test_a_model_that_is_not_here_or_cannot_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="Did you mean smollm2-135m-instruct"):
        size_model("smollm2-135m-instruc")
    with pytest.raises(ModelError, match="not there"):
        size_model(tmp_path / "none.json")
    with pytest.raises(ModelError, match="cannot be run"):
        kv_cache_bytes({"model_type": "mamba"})
    with pytest.raises(ModelError, match="names no model_type"):
        kv_cache_bytes({})
