"""Models in the Hugging Face cache and on the hub."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from batchpaged.errors import ModelError
from batchpaged.models.activity import activity, folder_bytes
from batchpaged.models.folder import CONFIG_FILE, missing_part
from batchpaged.models.quiet import quiet_hub
from batchpaged.models.sources import Note, Unavailable

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

WANTED = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt")
UNWANTED = ("original/*", "onnx/*", "consolidated*", "*.bin", "*.pt", "*.pth", "*.gguf", "*.msgpack", "*.h5")
SECONDS_TO_ANSWER = 10.0
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")


def is_hub_id(text: str) -> bool:
    """Whether `text` can name a repository: `owner/name`, or a bare `name`."""
    return _HUB_ID.fullmatch(text) is not None and ".." not in text and "--" not in text


def hub_cache_dir() -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def cached_snapshot(hub_id: str, revision: str | None) -> Path:
    """The complete snapshot folder in the Hugging Face cache; asks no server. Raises Unavailable.

    Judged by what a model needs, not by whether every file of the repository is there: other programs leave some out.
    """
    from huggingface_hub import try_to_load_from_cache

    config_file = try_to_load_from_cache(hub_id, CONFIG_FILE, revision=revision)
    if not isinstance(config_file, str):
        raise Unavailable("not there" if revision is None else f"not there at revision {revision!r}")
    return _complete(Path(config_file).parent)


def _complete(folder: Path) -> Path:
    problem = missing_part(folder)
    if problem is not None:
        raise Unavailable(f"there, but incomplete: {problem}")
    return folder


def download_snapshot(hub_id: str, revision: str | None, note: Note) -> Path:
    """Fetches a model into the Hugging Face cache; an interrupted download goes on where it stopped.

    Raises Unavailable where the hub does not have it or cannot be reached, ModelError where it has no safetensors.
    """
    info = _describe(hub_id, revision)
    _check_has_safetensors(hub_id, [file.rfilename for file in info.siblings or ()])
    repository_folder = hub_cache_dir() / f"models--{hub_id.replace('/', '--')}"
    num_bytes_before = folder_bytes(repository_folder)

    def measure() -> int:
        return folder_bytes(repository_folder) - num_bytes_before

    label = f"downloading {hub_id} from the hub"
    with quiet_hub(), activity(label, note, num_bytes=_num_wanted_bytes(info), measure=measure):
        return _complete(_fetch(hub_id, revision))


def _fetch(hub_id: str, revision: str | None) -> Path:
    """By the revision's name, not its commit: the cache has to remember what the name stands for."""
    from huggingface_hub import errors, snapshot_download

    try:
        folder = snapshot_download(
            hub_id,
            revision=revision,
            etag_timeout=SECONDS_TO_ANSWER,
            allow_patterns=list(WANTED),
            ignore_patterns=list(UNWANTED),
        )
    except errors.HfHubHTTPError as error:
        raise Unavailable(_in_words(hub_id, revision, error)) from error
    except Exception as error:  # the HTTP library's, OSError: the network or the disk
        raise Unavailable(f"the download stopped ({_kind_and_line(error)}); a rerun goes on") from error
    return Path(folder)


def _describe(hub_id: str, revision: str | None) -> "ModelInfo":
    """One short question first: without a network it fails at once, where a download would retry for minutes."""
    from huggingface_hub import HfApi

    try:
        return HfApi().model_info(hub_id, revision=revision, timeout=SECONDS_TO_ANSWER, files_metadata=True)
    except Exception as error:  # the client's own errors, its HTTP library's, OSError
        raise Unavailable(_in_words(hub_id, revision, error)) from error


def _in_words(hub_id: str, revision: str | None, error: Exception) -> str:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):  # before RepositoryNotFoundError, its base class
        return f"{hub_id} is gated: accept its terms on its hub page, then set HF_TOKEN to a token of that account"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"no repository {hub_id}, or a private one: then set HF_TOKEN to a token that may read it"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{hub_id} has no revision {revision!r}"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return "not asked: HF_HUB_OFFLINE is set"
    if isinstance(error, errors.HfHubHTTPError):
        return f"the hub answered {error.response.status_code}" if error.response is not None else "the hub refused"
    return f"no connection to the hub ({_kind_and_line(error)})"


def _kind_and_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _check_has_safetensors(hub_id: str, names: Sequence[str]) -> None:
    if any(_is_wanted(name) and name.endswith(".safetensors") for name in names):
        return
    raise ModelError(
        f"model {hub_id!r} has no safetensors weights. Pickle files can run code when they are read, so they are not; "
        "take a revision or a copy of the model that has safetensors"
    )


def _is_wanted(name: str) -> bool:
    from huggingface_hub.utils import filter_repo_objects

    return bool(list(filter_repo_objects([name], allow_patterns=list(WANTED), ignore_patterns=list(UNWANTED))))


def _num_wanted_bytes(info: "ModelInfo") -> int | None:
    sizes = [file.size for file in info.siblings or () if _is_wanted(file.rfilename)]
    return None if None in sizes else sum(size for size in sizes if size is not None)
