"""A GGUF file becomes a safetensors folder with the same weights and the tokenizer that the file describes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from tiny_models import VOCAB_SIZE, tiny_model, tiny_tokenizer
from transformers import PreTrainedModel

from batchpaged.errors import ModelError
from batchpaged.models.convert import convert_gguf
from batchpaged.models.folder import missing_part
from batchpaged.models.load import load_config, load_model, load_tokenizer
from batchpaged.models.resolve import ResolvedModel

NORMAL, CONTROL = 1, 3
MERGES = ["1 2", "Ċ Ċ"]  # a tokenizer that splits digits never uses the first one


def _write_gguf(file: Path, model: PreTrainedModel, pre: str = "smollm", kind: str = "gpt2") -> Path:
    writer = GGUFWriter(file, "llama")
    _write_shape(writer, model)
    _write_tokenizer(writer, pre, kind)
    for name, tensor in _tensors(model).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _write_shape(writer: GGUFWriter, model: PreTrainedModel) -> None:
    config = model.config
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)


def _write_tokenizer(writer: GGUFWriter, pre: str, kind: str) -> None:
    known = sorted(tiny_tokenizer().get_vocab().items(), key=lambda item: item[1])
    tokens = [token for token, _ in known] + ["12", "ĊĊ"]
    tokens += [f"<unused{i}>" for i in range(VOCAB_SIZE - len(tokens))]
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL] * 3 + [NORMAL] * (VOCAB_SIZE - 3))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template("{{ messages[0]['content'] }}<end>")


def _tensors(model: PreTrainedModel) -> dict[str, np.ndarray]:
    """Under GGUF's names; queries and keys with their rotary halves interleaved, as the format has them."""
    names = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    tensors = {
        "token_embd.weight": weights["model.embed_tokens.weight"],
        "output_norm.weight": weights["model.norm.weight"],
        "output.weight": weights["lm_head.weight"],
    }
    for layer in range(model.config.num_hidden_layers):
        for name, short in names.items():
            weight = weights[f"model.layers.{layer}.{name}.weight"]
            if short in ("attn_q", "attn_k"):
                weight = _interleave(weight, model.config.head_dim)
            tensors[f"blk.{layer}.{short}.weight"] = np.ascontiguousarray(weight)
    return tensors


def _interleave(weight: np.ndarray, head_dim: int) -> np.ndarray:
    rows, columns = weight.shape
    return weight.reshape(rows // head_dim, 2, head_dim // 2, columns).swapaxes(1, 2).reshape(rows, columns)


@pytest.fixture
def converted(tmp_path: Path) -> ResolvedModel:
    convert_gguf(_write_gguf(tmp_path / "model.gguf", tiny_model()), tmp_path / "model")
    return ResolvedModel("converted", tmp_path / "model", "wheel", "0")


def test_the_model_is_the_same(converted: ResolvedModel) -> None:
    assert missing_part(converted.path) is None
    model = load_model(converted, dtype=torch.float32, device="cpu", attn_implementation="eager")
    expected = tiny_model().state_dict()
    assert {name: torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items()} == dict.fromkeys(
        expected, True
    )
    assert load_config(converted).dtype == torch.float32


def test_the_tokenizer_is_the_files_own(converted: ResolvedModel) -> None:
    tokenizer = load_tokenizer(converted)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 0)
    assert tokenizer("<bos>a").input_ids == [1, *tiny_tokenizer()("a").input_ids]
    assert tokenizer.decode(tokenizer("ünï ▁ code").input_ids) == "ünï ▁ code"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi<end>"


def test_digits_stand_alone_and_white_space_before_them_stays_together(converted: ResolvedModel) -> None:
    tokenizer = load_tokenizer(converted)
    assert tokenizer.convert_ids_to_tokens(tokenizer("\n\n12").input_ids) == ["ĊĊ", "1", "2"]


@pytest.mark.parametrize(("pre", "kind"), [("qwen2", "gpt2"), ("smollm", "llama")])
def test_another_kind_of_tokenizer_is_refused(tmp_path: Path, pre: str, kind: str) -> None:
    file = _write_gguf(tmp_path / "model.gguf", tiny_model(), pre, kind)
    with pytest.raises(ModelError, match="cannot be converted"):
        convert_gguf(file, tmp_path / "model")
    assert not (tmp_path / "model").exists()
