"""What is learned from a model by running it once."""

import pytest
import torch
from tiny_models import TINY, WINDOW, tiny_model
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from batchpaged.attention.layer_shape import LayerShape
from batchpaged.errors import ModelError
from batchpaged.models.kv_shape import kv_bytes_per_token, layer_shapes, layer_windows
from batchpaged.models.layers import attention_layers


@pytest.mark.parametrize("name", TINY)
def test_the_configuration_tells_the_shape_that_the_model_uses(name: str) -> None:
    model = tiny_model(name)
    layers = attention_layers(model)
    assert [layer.index for layer in layers] == list(range(model.config.num_hidden_layers))
    assert layer_shapes(model.config) == [layer.shape for layer in layers]
    assert layer_windows(model.config) == [layer.sliding_window for layer in layers]


def test_kv_bytes_count_keys_and_values_of_every_layer() -> None:
    layers = (LayerShape(2, 16, 16), LayerShape(4, 24, 8))  # 64 and 128 numbers per token
    assert kv_bytes_per_token(layers, torch.float32, "auto") == (2 * 32 + 4 * 32) * 4
    assert kv_bytes_per_token(layers, torch.bfloat16, "auto") == (2 * 32 + 4 * 32) * 2
    assert kv_bytes_per_token(layers, torch.float32, "int8") == (2 * 32 + 4 * 32) + (2 + 4) * 2 * 4  # and float32 scales


def test_layer_shapes_count_keys_and_values() -> None:
    assert [shape.num_values for shape in layer_shapes(TINY["llama"]())] == [2 * (16 + 16)] * 3
    assert [shape.num_values for shape in layer_shapes(TINY["deepseek_v3"]())] == [4 * (24 + 16)] * 3
    assert [shape.head_dim for shape in layer_shapes(TINY["gemma4_text"]())] == [16, 32, 16, 32]


def test_windows_caps_and_sinks_are_seen() -> None:
    assert [layer.sliding_window for layer in attention_layers(tiny_model("gemma2"))] == [WINDOW, None, WINDOW, None]
    assert {layer.softcap for layer in attention_layers(tiny_model("gemma2"))} == {3.0}
    assert all(layer.has_sinks for layer in attention_layers(tiny_model("gpt_oss")))
    assert {layer.scaling for layer in attention_layers(tiny_model("granite"))} == {0.25}


def test_the_model_is_as_before_afterwards() -> None:
    model = tiny_model("qwen2")
    tokens = torch.tensor([[5, 6, 7]])
    before, attention = model(tokens).logits, model.config._attn_implementation
    attention_layers(model)
    assert model.config._attn_implementation == attention
    assert torch.equal(model(tokens).logits, before)


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [("diffllama", "make 4 attention calls"), ("doge", "mask of its own"), ("bert", "both ways")],
)
def test_what_a_configuration_does_not_tell_is_refused(model_type: str, reason: str) -> None:
    config = CONFIG_MAPPING[model_type](
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, pad_token_id=0
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(ModelError, match=reason):
        attention_layers(model)
