"""Where data lies: local paths and URLs of any pyarrow or fsspec filesystem, as one small value.

A URL that pyarrow knows itself (s3, gs, abfs, hdfs, file) uses pyarrow's filesystem and its standard credential chain;
every other one (hf, memory, http, ...) uses fsspec. Options follow a question mark:
`s3://bucket/data?endpoint_override=host`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.fs as pafs

from batchpaged.dataset.s3 import open_s3
from batchpaged.errors import InputError

_URL = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://(.*)$", re.DOTALL)
# `max_tokens=64` and `token_ids_column=ids` are none.
_SECRET = re.compile(r"(?i)(\b[\w-]*(?:secret|token(?!s|_id)|password|signature|credential|access_?key)[\w-]*[=:]\s*)[^\s,;&]+")
_ARROW_SCHEMES = ("file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
_FSSPEC_VERSIONS = (  # what an fsspec filesystem may call the thing that changes with a file's content, best first
    "ETag", "etag", "md5Hash", "blob_id", "sha256", "checksum", "uid",
    "mtime", "LastModified", "last_modified", "updated", "modified", "created",
)  # fmt: skip


@dataclass(frozen=True)
class Location:
    """A path on a filesystem. Picklable; holds whatever the filesystem needs to connect again."""

    filesystem: pafs.FileSystem
    path: str  # as the filesystem wants it
    prefix: str  # "" for local files, else "s3://" and the like

    @property
    def name(self) -> str:
        """What messages and fingerprints show: no credentials, no options."""
        return self.prefix + self.path

    @property
    def is_local(self) -> bool:
        return isinstance(self.filesystem, pafs.LocalFileSystem)

    def at(self, path: str) -> Location:
        """Another path on the same filesystem."""
        return Location(self.filesystem, path, self.prefix)

    def child(self, name: str) -> Location:
        return self.at(f"{self.path.rstrip('/')}/{name}")

    def info(self) -> pafs.FileInfo:
        return self.filesystem.get_file_info(self.path)

    def list(self, is_recursive: bool) -> list[pafs.FileInfo]:
        """Everything below the folder, in the order of the paths."""
        selector = pafs.FileSelector(self.path, recursive=is_recursive)
        return sorted(self.filesystem.get_file_info(selector), key=lambda info: info.path)

    def open(self) -> pa.NativeFile:
        return self.filesystem.open_input_file(self.path)

    def read_bytes(self) -> bytes:
        with self.filesystem.open_input_stream(self.path) as stream:
            return stream.read()


def resolve(path: str) -> Location:
    """The location of a local path or URL; nothing is looked up yet. Raises InputError for a URL nobody can open."""
    match = _URL.match(path)
    if not match:
        return Location(pafs.LocalFileSystem(), str(Path(path).expanduser().absolute()), "")
    scheme, rest = match[1].lower(), match[2]
    try:
        return _resolve_by_arrow(scheme, rest) if scheme in _ARROW_SCHEMES else _resolve_by_fsspec(path)
    except ImportError as error:
        raise InputError(f"{mask(path)}: reading {scheme}:// needs another package: {error}") from error
    except Exception as error:  # filesystems are plug-ins: they raise what they like
        raise InputError(f"{mask(path)}: {mask(first_line(error))}") from error


def find_version(location: Location, mtime_ns: int | None = None) -> str | None:
    """What changes when the file's content does: time of modification in ns, else an entity tag; None if neither is
    known.
    """
    if mtime_ns is not None:
        return str(mtime_ns)
    handler = getattr(location.filesystem, "handler", None)
    if not isinstance(handler, pafs.FSSpecHandler):
        return None
    info = handler.fs.info(location.path)
    return next((str(info[key]) for key in _FSSPEC_VERSIONS if info.get(key) is not None), None)


def mask(text: str) -> str:
    """The text without the credentials and options that a URL in it carries, and without tokens that are named so."""
    return mask_credentials(re.sub(r"(\w+://[^\s?]*)\?\S+", r"\1?***", text))


def mask_credentials(text: str) -> str:
    """The same, but harmless options of a URL stay."""
    text = re.sub(r"://[^@\s]+@", "://***@", text)  # a secret key may hold a slash
    return _SECRET.sub(r"\1***", text)


def first_line(error: BaseException) -> str:
    """An error's message, short enough for a list of problems."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def _resolve_by_arrow(scheme: str, rest: str) -> Location:
    address, question, options = rest.partition("?") if scheme != "file" else (rest, "", "")
    host, slash, inner = address.partition("/")
    uri = f"{scheme}://{host}{slash}{quote(inner, safe='/%')}{question}{options}"
    filesystem, path = open_s3(uri) if scheme == "s3" else pafs.FileSystem.from_uri(uri)
    return Location(filesystem, path, "" if scheme == "file" else f"{scheme}://")


def _resolve_by_fsspec(url: str) -> Location:
    import fsspec

    filesystem, path = fsspec.core.url_to_fs(url)
    prefix = filesystem.unstrip_protocol(path).removesuffix(path)
    return Location(pafs.PyFileSystem(pafs.FSSpecHandler(filesystem)), path, prefix)
