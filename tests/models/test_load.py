"""Configuration, tokenizer and weights from a model folder."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_models import save_tiny, tiny_model, tiny_tokenizer

from batchpaged.errors import ModelError
from batchpaged.models.load import (
    load_config,
    load_model,
    load_tokenizer,
    note_on_code,
    resolve_dtype,
    stop_token_ids,
)
from batchpaged.models.resolve import ResolvedModel


def _at(folder: Path) -> ResolvedModel:
    return ResolvedModel("some model", folder, "folder", "0")


def _load(folder: Path) -> Any:
    return load_model(_at(folder), dtype=torch.float32, device="cpu", attn_implementation="eager")


def _edit_config(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def _edit_weights(folder: Path, add: str | None = None, remove: str | None = None) -> None:
    weights = load_file(folder / "model.safetensors")
    if remove is not None:
        del weights[remove]
    if add is not None:
        weights[add] = torch.zeros(3)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def test_loads_what_was_saved(tiny_folder: Path) -> None:
    tokens = torch.tensor([[5, 6, 7]])
    model = _load(tiny_folder)
    assert torch.equal(model(tokens).logits, tiny_model()(tokens).logits)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_weights_go_straight_to_a_gpu(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not through a whole model in the host's memory."""
    given: dict[str, Any] = {}

    def from_pretrained(path: Path, **options: Any) -> tuple[torch.nn.Module, dict[str, Any]]:
        given.update(options)
        return torch.nn.Linear(1, 1), {}

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", from_pretrained)
    load_model(_at(tiny_folder), dtype=torch.bfloat16, device="cuda:1", attn_implementation="eager")
    assert given["device_map"] == {"": "cuda:1"} and given["dtype"] is torch.bfloat16


@pytest.mark.parametrize("name", ["llama:tied", "gemma", "gpt2", "qwen3_moe"])
def test_tied_weights_are_not_missing(tmp_path: Path, name: str) -> None:
    _load(save_tiny(tmp_path / "model", name))


def test_missing_weights_are_never_random(tiny_folder: Path) -> None:
    _edit_weights(tiny_folder, remove="model.layers.1.mlp.up_proj.weight")
    with pytest.raises(ModelError, match=r"model.layers.1.mlp.up_proj.weight are missing .* random"):
        _load(tiny_folder)


def test_left_over_weights_are_refused(tiny_folder: Path) -> None:
    _edit_weights(tiny_folder, add="model.layers.0.self_attn.q_proj.bias")
    with pytest.raises(ModelError, match="q_proj.bias in its files have no place"):
        _load(tiny_folder)


def test_tables_of_old_checkpoints_are_not_left_over(tiny_folder: Path) -> None:
    _edit_weights(tiny_folder, add="model.layers.0.self_attn.rotary_emb.inv_freq")
    _load(tiny_folder)


def test_weights_of_another_shape_are_refused(tiny_folder: Path) -> None:
    _edit_config(tiny_folder, intermediate_size=95)
    with pytest.raises(ModelError, match="some model"):
        _load(tiny_folder)


def test_pickle_weights_are_not_read(tiny_folder: Path) -> None:
    torch.save(load_file(tiny_folder / "model.safetensors"), tiny_folder / "pytorch_model.bin")
    (tiny_folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="cannot be loaded"):
        _load(tiny_folder)


def test_truncated_weights_are_refused(tiny_folder: Path) -> None:
    file = tiny_folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match="cannot be loaded"):
        _load(tiny_folder)


def test_code_of_a_repository_is_never_run(tiny_folder: Path) -> None:
    _edit_config(tiny_folder, model_type="homemade", auto_map={"AutoConfig": "code.HomemadeConfig"})
    (tiny_folder / "code.py").write_text("raise SystemExit('was run')")
    with pytest.raises(ModelError, match="needs code from its repository"):
        load_config(_at(tiny_folder))


def test_code_of_a_tokenizer_is_never_run(tiny_folder: Path) -> None:
    (tiny_folder / "tokenizer.json").unlink()
    config = {"auto_map": {"AutoTokenizer": ["code.Homemade", None]}, "tokenizer_class": "Homemade"}
    (tiny_folder / "tokenizer_config.json").write_text(json.dumps(config))
    (tiny_folder / "code.py").write_text("raise SystemExit('was run')")
    with pytest.raises(ModelError, match="its tokenizer needs code from its repository, which batchpaged never runs"):
        load_tokenizer(_at(tiny_folder))


def test_code_of_a_known_type_is_not_run_and_that_is_said(tiny_folder: Path) -> None:
    assert note_on_code(_at(tiny_folder)) is None
    _edit_config(tiny_folder, auto_map={"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"})
    (tiny_folder / "code.py").write_text("raise SystemExit('was run')")
    assert "is not run; transformers' own class is used" in note_on_code(_at(tiny_folder))
    assert type(_load(tiny_folder)).__name__ == "LlamaForCausalLM"


def test_unknown_type_says_which_version_does_not_know_it(tiny_folder: Path) -> None:
    _edit_config(tiny_folder, model_type="llama99")
    with pytest.raises(ModelError, match=r"'llama99', which transformers \d.* does not know"):
        load_config(_at(tiny_folder))


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_unreadable_config(tiny_folder: Path, text: str) -> None:
    (tiny_folder / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"some model.*config\.json"):
        load_config(_at(tiny_folder))


def test_tokenizer_keeps_template_and_special_tokens(tiny_folder: Path) -> None:
    tokenizer = load_tokenizer(_at(tiny_folder))
    assert tokenizer.chat_template == tiny_tokenizer().chat_template
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.decode(tokenizer("¿Qué? 12").input_ids) == "¿Qué? 12"


def test_damaged_tokenizer(tiny_folder: Path) -> None:
    (tiny_folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="tokenizer cannot be loaded"):
        load_tokenizer(_at(tiny_folder))


@pytest.mark.parametrize(
    ("own", "requested", "device", "expected"),
    [
        (torch.bfloat16, "auto", "cpu", torch.float32),
        (torch.bfloat16, "bfloat16", "cpu", torch.bfloat16),
        (torch.float16, "auto", "cuda", torch.float16),
        ("float16", "auto", "cuda:1", torch.float16),
        (None, "float16", "cuda", torch.float16),
        (torch.bfloat16, "float32", "cuda", torch.float32),
    ],
)
def test_dtype(own: Any, requested: str, device: str, expected: torch.dtype) -> None:
    assert resolve_dtype(own, requested, device) is expected


@pytest.mark.parametrize(("has_bfloat16", "expected"), [(True, torch.bfloat16), (False, torch.float16)])
def test_dtype_of_a_long_checkpoint_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, has_bfloat16: bool, expected: torch.dtype
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0) if has_bfloat16 else (7, 5))
    assert resolve_dtype(torch.float32, "auto", "cuda") is expected


def test_stop_tokens_are_where_generate_stops() -> None:
    model, tokenizer = tiny_model(), tiny_tokenizer()
    assert stop_token_ids(model, None) == frozenset()
    assert stop_token_ids(model, tokenizer) == {2}
    model.config.eos_token_id = 7
    assert stop_token_ids(model, tokenizer) == {7}
    model.generation_config.eos_token_id = [8, 9]
    assert stop_token_ids(model, tokenizer) == {8, 9}
