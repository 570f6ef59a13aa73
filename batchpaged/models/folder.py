"""A model as a local folder: whether it is complete, and what tells it from another."""

import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "*.model", "*.tiktoken", "vocab.*", "tekken.json")
NUM_SAMPLES = 64  # per weights file
SAMPLE_BYTES = 4096
MAX_HEADER_BYTES = 100_000_000  # the safetensors format's own limit
_NAME_KEYS = {"_name_or_path", "_model_name_or_path"}
_SAVER_KEYS = {"backend", "is_local", "local_files_only", "transformers_version"}


def missing_part(folder: Path) -> str | None:
    """What `folder` lacks to be a model, in words; None if it is complete."""
    if not (folder / CONFIG_FILE).is_file():
        return f"no {CONFIG_FILE}"
    if not any(any(folder.glob(pattern)) for pattern in TOKENIZER_FILES):
        return "no tokenizer (tokenizer.json)"
    if (folder / INDEX_FILE).is_file():
        return _missing_shards(folder)
    return None if (folder / WEIGHTS_FILE).is_file() else _no_weights(folder)


def _no_weights(folder: Path) -> str:
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        return "its weights are pickle files, which can run code when they are read: save them as safetensors"
    return f"no weights ({WEIGHTS_FILE})"


def _missing_shards(folder: Path) -> str | None:
    try:
        shards = _shard_names(folder)
    except (ValueError, KeyError, AttributeError):
        return f"{INDEX_FILE} cannot be read"
    outside = [name for name in shards if PurePath(name).is_absolute() or ".." in PurePath(name).parts]
    if outside:
        return f"{INDEX_FILE} names a file outside of the folder"
    missing = [name for name in shards if not (folder / name).is_file()]
    return f"{len(missing)} of {len(shards)} weight files are missing, {missing[0]} first" if missing else None


def _shard_names(folder: Path) -> list[str]:
    return sorted(set(json.loads((folder / INDEX_FILE).read_text("utf-8"))["weight_map"].values()))


def weight_files(folder: Path) -> list[Path]:
    """The weights of a complete folder, in a fixed order."""
    if (folder / INDEX_FILE).is_file():
        return [folder / name for name in _shard_names(folder)]
    return [folder / WEIGHTS_FILE]


def identity(folder: Path) -> str:
    """Hex digest of configuration, tokenizer and weights.

    Of the weights it reads the headers, which name every tensor with its shape, and evenly spread samples: training
    changes nearly every byte, so samples tell two models apart without reading gigabytes. The same on every machine.
    Raises ValueError where a weights file is damaged.
    """
    digest = hashlib.sha256()
    for file in _small_files(folder):
        _add(digest, file.name, _stable_bytes(file))
    for file in weight_files(folder):
        for piece in _weight_samples(file):
            _add(digest, file.name, piece)
    return digest.hexdigest()[:32]


def _add(digest: "hashlib._Hash", name: str, data: bytes) -> None:
    """Lengths in between: no two lists of pieces give the same stream of bytes."""
    digest.update(f"{name}:{len(data)}:".encode())
    digest.update(data)


def _small_files(folder: Path) -> list[Path]:
    """Configuration and tokenizer; licences, read-me files and indexes do not change what the model computes."""
    suffixes = {".json", ".jinja", ".model", ".tiktoken", ".txt"}
    unrelated = {INDEX_FILE, "license.txt", "notice.txt", "readme.txt"}
    files = (f for f in folder.iterdir() if f.suffix in suffixes and f.name.lower() not in unrelated and f.is_file())
    return sorted(files, key=lambda file: file.name)


def _stable_bytes(file: Path) -> bytes:
    """Without what depends on who saved the file: the same conversion has the same identity under any version."""
    data = file.read_bytes()
    if not file.name.endswith("config.json"):
        return data
    try:
        values = json.loads(data)
        stable = {key: value for key, value in values.items() if key not in _NAME_KEYS | _SAVER_KEYS}
    except (ValueError, AttributeError):
        return data
    return json.dumps(stable, sort_keys=True).encode()


def _weight_samples(file: Path) -> Iterator[bytes]:
    num_bytes = file.stat().st_size
    yield str(num_bytes).encode()
    with file.open("rb") as stream:
        header = _header(stream.read(8), num_bytes, stream.read)
        if header is None:
            raise ValueError(f"{file.name} is damaged or incomplete ({num_bytes:,} bytes)")
        yield header
        num_data_bytes = num_bytes - 8 - len(header)
        for sample in range(NUM_SAMPLES):
            stream.seek(8 + len(header) + num_data_bytes * sample // NUM_SAMPLES)
            yield stream.read(SAMPLE_BYTES)


def _header(size_field: bytes, num_bytes: int, read: Callable[[int], bytes]) -> bytes | None:
    """The JSON header of a safetensors file; None where it and the file's size do not agree."""
    num_header_bytes = struct.unpack("<Q", size_field)[0] if len(size_field) == 8 else num_bytes
    if num_header_bytes + 8 > min(num_bytes, MAX_HEADER_BYTES):
        return None
    header = read(num_header_bytes)
    try:
        tensors = [tensor for name, tensor in json.loads(header).items() if name != "__metadata__"]
        num_data_bytes = max((tensor["data_offsets"][1] for tensor in tensors), default=0)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return header if 8 + num_header_bytes + num_data_bytes == num_bytes else None
