"""LoRA adapters on disk: what is read, what is refused, and why."""

import json

import pytest
import tiny_adapters
import torch
from safetensors.torch import load_file, save_file
from tiny_models import tiny_model

from batchpaged.errors import ModelError
from batchpaged.models.adapters import find_adapters, read_pairs
from batchpaged.models.lora import AdapterRows, check_adapters


def found(folder, name="one"):
    return find_adapters(((name, str(folder)),))[0]


def edit(folder, **config):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))


@pytest.mark.parametrize(
    ("config", "scale"),
    [({}, 4.0), ({"use_rslora": True}, 12 / 3**0.5), ({"alpha_pattern": {"q_proj": 6}}, 2.0), ({"alpha_pattern": {"layers.0": 6}}, 4.0)],
)
def test_the_scale_is_pefts(tmp_path, config, scale):
    pairs = read_pairs(found(tiny_adapters.save_adapter(tmp_path / "a", 0, r".*layers\.0\..*q_proj", **config)))
    assert [(p.module, p.rank, p.num_inputs, p.num_outputs) for p in pairs] == [("model.layers.0.self_attn.q_proj", 3, 64, 64)]
    assert pairs[0].scale == pytest.approx(scale)


def test_ranks_may_differ_by_module(tmp_path):
    pairs = read_pairs(found(tiny_adapters.save_adapter(tmp_path / "a", 0, rank_pattern={"down_proj": 5})))
    assert {p.module.rpartition(".")[2]: p.rank for p in pairs}["down_proj"] == 5
    assert {p.rank for p in pairs} == {3, 5} and len(pairs) == 21


def test_an_adapter_is_known_by_what_it_computes(tmp_path):
    folders = [tiny_adapters.save_adapter(tmp_path / name, seed) for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    edit(folders[1], base_model_name_or_path="elsewhere")
    identities = [found(folder).identity for folder in folders]
    assert identities[0] == identities[1] != identities[2]
    edit(folders[1], lora_alpha=13)
    assert found(folders[1]).identity != identities[0]


def test_what_is_no_adapter_is_refused(tmp_path):
    for words in ("is no folder", "has no adapter_config.json and no adapter_model.safetensors", "pickle"):
        with pytest.raises(ModelError, match=f"model.adapters.one: .*{words}"):
            found(tmp_path / "a")
        (tmp_path / "a").mkdir(exist_ok=True)
        if words.startswith("has"):
            (tmp_path / "a" / "adapter_config.json").write_text("{}")
            (tmp_path / "a" / "adapter_model.bin").write_bytes(b"")


def test_a_missing_adapter_is_looked_for_near_the_path_that_was_tried(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "adapters" / "legal" / "checkpoint-5").mkdir(parents=True)
    (tmp_path / "adapters" / "legal" / "checkpoint-5" / "adapter_config.json").write_text("{}")
    expected = {
        "adapters/leagl": ["in the current folder", f"{tmp_path}/adapters/leagl was tried", "did you mean adapters/legal? An adapter is"],
        "adapters/other": [f"{tmp_path}/adapters holds legal", "with adapter_config.json and adapter_model.safetensors"],
        "nowhere/legal": [f"there is no {tmp_path}/nowhere either"],
        "adapters/legal": ["has no adapter_config.json", "did you mean adapters/legal/checkpoint-5?"],
        "adapters/legal/checkpoint-5/adapter_config.json": ["but a file; give the folder that holds it"],
    }
    for folder, words in expected.items():
        with pytest.raises(ModelError) as refused:
            found(folder)
        assert all(word in str(refused.value) for word in words), str(refused.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"peft_type": "IA3"}, "of type 'IA3'"),
        ({"use_dora": True, "bias": "all"}, "sets bias, use_dora"),
        ({"modules_to_save": ["lm_head"]}, "sets modules_to_save"),
        ({"init_lora_weights": "pissa"}, "sets init_lora_weights"),
    ],
)
def test_what_is_more_than_lora_is_refused(tmp_path, config, words):
    folder = tiny_adapters.save_adapter(tmp_path / "a", 0)
    edit(folder, **config)
    with pytest.raises(ModelError, match=words):
        found(folder)


def test_a_broken_configuration_is_refused(tmp_path):
    folder = tiny_adapters.save_adapter(tmp_path / "a", 0)
    (folder / "adapter_config.json").write_text("[")
    with pytest.raises(ModelError, match="cannot be read"):
        found(folder)


def change_weights(folder, change):
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


PREFIX = "base_model.model.model.layers.0.self_attn.q_proj."
CHANGES = [
    (lambda t: t.clear(), "holds nothing"),
    (lambda t: t.pop(PREFIX + "lora_B.weight"), "lora_A alone"),
    (lambda t: t.update({"base_model.model.model.embed_tokens.lora_embedding_A": torch.zeros(3, 3)}), "lora_embedding_A; only pairs"),
    (lambda t: t.update({PREFIX + "lora_magnitude_vector": torch.zeros(3)}), "only pairs"),
    (lambda t: t.update({PREFIX + "lora_A.weight": torch.zeros(4, 64)}), "not of rank 3"),
]


@pytest.mark.parametrize(("change", "words"), CHANGES)
def test_weights_that_are_not_pairs_of_the_rank_are_refused(tmp_path, change, words):
    folder = tiny_adapters.save_adapter(tmp_path / "a", 0)
    change_weights(folder, change)
    with pytest.raises(ModelError, match=words):
        read_pairs(found(folder))


def test_damaged_weights_are_refused(tmp_path):
    folder = tiny_adapters.save_adapter(tmp_path / "a", 0)
    (folder / "adapter_model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="cannot be read"):
        read_pairs(found(folder))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.update({key.replace("layers.0", "layers.9"): t.pop(key) for key in list(t)}), "no layer model.layers.9"),
        (lambda t: t.update({PREFIX + "lora_A.weight": torch.zeros(3, 32)}), "64 inputs and 64 outputs here, and 32 and 64 there"),
        (
            lambda t: t.update({key.replace("model.layers.0.self_attn.q_proj", "lm_head"): t.pop(key) for key in list(t)}),
            "lm_head is a Linear; only linear layers inside",
        ),
        (
            lambda t: t.update({key.replace("layers.0.self_attn.q_proj", "norm"): t.pop(key) for key in list(t)}),
            "norm is a LlamaRMSNorm",
        ),
    ],
)
def test_an_adapter_of_another_model_is_refused(tmp_path, change, words):
    folder = tiny_adapters.save_adapter(tmp_path / "a", 0, r".*layers\.0\..*q_proj")
    change_weights(folder, change)
    with pytest.raises(ModelError, match=f"model.adapters.one: .*{words}"):
        check_adapters(tiny_model(), [found(folder)])


def test_rows_of_an_adapter_are_a_slice_where_they_follow_each_other():
    rows = AdapterRows()
    rows.select([("a", 2), ("a", 1), (None, 3), ("b", 1), ("a", 2)], torch.device("cpu"))
    assert rows.num_rows == 9
    assert [(name, found if isinstance(found, slice) else found.tolist()) for name, found in rows.groups] == [
        ("a", [0, 1, 2, 7, 8]),
        ("b", slice(6, 7)),
    ]
    rows.select([(None, 4)], torch.device("cpu"))
    assert rows.groups == [] and rows.num_rows == 4
