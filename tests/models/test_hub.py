"""What is fetched from the hub, and what its answers mean."""

from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import errors

from batchpaged.errors import ModelError
from batchpaged.models.hub import download_snapshot, is_hub_id
from batchpaged.models.sources import Unavailable
from tiny_models import save_tiny

HUB_ID = "someone/tiny"


def _error(kind: type[Exception]) -> Exception:
    """Without the whole HTTP response that the client's errors want; their classes are what counts."""
    error = kind.__new__(kind)
    Exception.__init__(error, "details that no one reads")
    return error


def _describes(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    files = [SimpleNamespace(rfilename=name, size=10) for name in names]
    monkeypatch.setattr(
        huggingface_hub.HfApi, "model_info", lambda *args, **more: SimpleNamespace(sha="b" * 40, siblings=files)
    )


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (errors.GatedRepoError, "gated: accept its terms on its hub page, then set HF_TOKEN"),
        (errors.RepositoryNotFoundError, "no repository someone/tiny, or a private one"),
        (errors.RevisionNotFoundError, "someone/tiny has no revision 'v1'"),
        (errors.OfflineModeIsEnabled, "HF_HUB_OFFLINE is set"),
        (TimeoutError, "no connection to the hub (TimeoutError"),
    ],
)
def test_answers_in_words(monkeypatch: pytest.MonkeyPatch, kind: type[Exception], words: str) -> None:
    def answer(*arguments: object, **more: object) -> None:
        raise _error(kind)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", answer)
    with pytest.raises(Unavailable) as reason:
        download_snapshot(HUB_ID, "v1", print)
    assert words in str(reason.value)


def test_only_what_a_model_needs_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wanted: dict[str, object] = {}

    def snapshot_download(hub_id: str, **options: object) -> str:
        wanted.update(options)
        return str(save_tiny(tmp_path / "snapshot"))

    _describes(monkeypatch, "config.json", "model.safetensors", "pytorch_model.bin", "original/all.safetensors")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    notes: list[str] = []
    assert download_snapshot(HUB_ID, None, notes.append) == tmp_path / "snapshot"
    assert wanted["revision"] is None
    assert "*.safetensors" in wanted["allow_patterns"]
    assert {"*.bin", "original/*"} <= set(wanted["ignore_patterns"])
    assert notes == ["downloading someone/tiny from the hub (0 MB)"]


def test_a_model_of_pickle_files_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _describes(monkeypatch, "config.json", "pytorch_model.bin", "original/all.safetensors")
    with pytest.raises(ModelError, match="no safetensors weights. Pickle files can run code"):
        download_snapshot(HUB_ID, None, print)


def test_a_download_that_stops_says_that_it_can_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(hub_id: str, **options: object) -> str:
        raise ConnectionError("reset")

    _describes(monkeypatch, "model.safetensors")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(Unavailable, match=r"the download stopped .*ConnectionError: reset.*; a rerun goes on"):
        download_snapshot(HUB_ID, None, print)


@pytest.mark.parametrize("text", ["owner/name", "gpt2", "Owner.x/na_me-1.5B"])
def test_hub_ids(text: str) -> None:
    assert is_hub_id(text)


@pytest.mark.parametrize("text", ["./folder", "/abs/path", "a/b/c", "~/model", "a..b", "-x", "", "owner/", "a b"])
def test_no_hub_ids(text: str) -> None:
    assert not is_hub_id(text)
