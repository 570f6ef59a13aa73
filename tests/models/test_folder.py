"""A complete model folder, and what tells it from another."""

import json
import shutil
from pathlib import Path

import pytest
from tiny_models import save_tiny

from batchpaged.models.folder import identity, missing_part


def test_complete(tiny_folder: Path) -> None:
    assert missing_part(tiny_folder) is None


@pytest.mark.parametrize(
    ("remove", "problem"),
    [
        (["config.json"], "no config.json"),
        (["model.safetensors"], "no weights (model.safetensors)"),
        (["tokenizer.json", "tokenizer_config.json"], "no tokenizer (tokenizer.json)"),
    ],
)
def test_incomplete(tiny_folder: Path, remove: list[str], problem: str) -> None:
    for name in remove:
        (tiny_folder / name).unlink()
    assert missing_part(tiny_folder) == problem


def test_pickle_weights_are_named(tiny_folder: Path) -> None:
    (tiny_folder / "model.safetensors").rename(tiny_folder / "pytorch_model.bin")
    assert "pickle" in missing_part(tiny_folder)


def test_missing_shards_are_counted(tiny_folder: Path) -> None:
    names = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    (tiny_folder / "model.safetensors").rename(tiny_folder / names[0])
    index = {"weight_map": {f"weight{i}": name for i, name in enumerate(names)}}
    (tiny_folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert missing_part(tiny_folder) == f"2 of 3 weight files are missing, {names[1]} first"
    for name in names[1:]:
        shutil.copy(tiny_folder / names[0], tiny_folder / name)
    assert missing_part(tiny_folder) is None
    assert identity(tiny_folder)


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/weights.safetensors", "a/../../b.safetensors"])
def test_an_index_that_leaves_the_folder_is_refused(tiny_folder: Path, name: str) -> None:
    (tiny_folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    assert missing_part(tiny_folder) == "model.safetensors.index.json names a file outside of the folder"


def test_identity_is_that_of_the_content(tiny_folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(tiny_folder, tmp_path / "copy")
    (copy / "README.md").write_text("about")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"transformers_version": "5.99"}, indent=None))
    assert identity(copy) == identity(tiny_folder)


@pytest.mark.parametrize("file", ["tokenizer.json", "chat_template.jinja", "generation_config.json", "config.json"])
def test_identity_changes_with(tiny_folder: Path, file: str) -> None:
    before = identity(tiny_folder)
    content = (tiny_folder / file).read_text()
    (tiny_folder / file).write_text(content.replace("}", ', "more": 1}', 1) if file.endswith("json") else content + " ")
    assert identity(tiny_folder) != before


def test_identity_changes_with_weights_of_the_same_shapes(tiny_folder: Path, tmp_path: Path) -> None:
    other = save_tiny(tmp_path / "other", seed=1)
    sizes, other_sizes = ({f.name: f.stat().st_size for f in folder.iterdir()} for folder in (tiny_folder, other))
    assert sizes == other_sizes
    assert identity(other) != identity(tiny_folder)


@pytest.mark.parametrize("num_bytes", [0, 5, 200, -1])
def test_damaged_weights_have_no_identity(tiny_folder: Path, num_bytes: int) -> None:
    file = tiny_folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:num_bytes])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged or incomplete"):
        identity(tiny_folder)
