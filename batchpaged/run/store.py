"""A folder on an object store: whole files go there and come from there, under names relative to it.

A put is one request, or a multipart upload that is completed last; either way others see all of the file or nothing. The
filesystem tries every request several times (dataset/s3.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.fs as pafs

from batchpaged.atomic import replacing
from batchpaged.dataset.locations import Location, first_line, mask, resolve
from batchpaged.errors import RunDirectoryError, UnfinishedError

_CHUNK_BYTES = 16 << 20


class StoreError(UnfinishedError):
    """The store refused a request, or did not answer for as long as requests are tried."""


def is_on_store(run_dir: Path | str) -> bool:
    return "://" in str(run_dir)


@dataclass(frozen=True)
class Store:
    folder: Location

    @property
    def name(self) -> str:
        """The URL, without credentials and options."""
        return self.folder.name

    def files(self) -> dict[str, pafs.FileInfo]:
        """Every file below the folder, by name."""
        with self._explaining("cannot be listed"):
            selector = pafs.FileSelector(self.folder.path, allow_not_found=True, recursive=True)
            infos = self.folder.filesystem.get_file_info(selector)
        start = len(self.folder.path.rstrip("/")) + 1
        return {info.path[start:]: info for info in infos if info.type == pafs.FileType.File}

    def folders(self) -> list[str]:
        """Names of the folders right below this one, sorted."""
        with self._explaining("cannot be listed"):
            infos = self.folder.filesystem.get_file_info(pafs.FileSelector(self.folder.path, allow_not_found=True))
        return sorted(PurePosixPath(info.path).name for info in infos if info.type == pafs.FileType.Directory)

    def child(self, name: str) -> Store:
        return Store(self.folder.child(name))

    @property
    def parent(self) -> Store:
        return Store(self.folder.at(str(PurePosixPath(self.folder.path).parent)))

    def read(self, name: str) -> bytes | None:
        """None if there is no such file."""
        try:
            with self._explaining(f"{name} cannot be read"):
                return self.folder.child(name).read_bytes()
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def write(self, name: str, content: bytes) -> None:
        with self._explaining(f"{name} cannot be written"), self._open(name) as stream:
            stream.write(content)

    def put(self, name: str, path: Path) -> int:
        """-> bytes. The file is mapped, so that only the store can fail between its first byte and its last: a stream that is
        closed after an error of ours would publish what it has."""
        with self._explaining(f"{name} cannot be written"):
            if path.stat().st_size == 0:
                self._open(name).close()
                return 0
            with pa.memory_map(str(path)) as file, self._open(name) as stream:
                while chunk := file.read_buffer(_CHUNK_BYTES):
                    stream.write(chunk)
                return file.size()

    def get(self, name: str, path: Path) -> None:
        """Replaces `path` in one step."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._explaining(f"{name} cannot be read"), replacing(path) as temporary:
            with self.folder.filesystem.open_input_stream(self.folder.child(name).path) as stream, open(temporary, "wb") as file:
                while chunk := stream.read(_CHUNK_BYTES):
                    file.write(chunk)

    def delete(self, name: str) -> None:
        """It may be gone already."""
        try:
            with self._explaining(f"{name} cannot be deleted"):
                self.folder.filesystem.delete_file(self.folder.child(name).path)
        except StoreError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise

    def delete_tree(self, name: str) -> None:
        """A file, or a folder with all that is in it; it may be gone already."""
        with self._explaining(f"{name} cannot be deleted"):
            place = self.folder.child(name)
            if place.info().type == pafs.FileType.Directory:
                self.folder.filesystem.delete_dir(place.path)
                return
        self.delete(name)

    def delete_all(self) -> None:
        with self._explaining("cannot be deleted"):
            self.folder.filesystem.delete_dir(self.folder.path)

    def _open(self, name: str) -> pa.NativeFile:
        return self.folder.filesystem.open_output_stream(self.folder.child(name).path)

    @contextmanager
    def _explaining(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.filename is not None:  # the disk's fault, not the store's
                raise
            raise StoreError(f"{self.name}: {what}: {mask(first_line(error))}") from error


def name_of(run_dir: Path | str) -> str:
    """What messages call it."""
    return open_store(str(run_dir)).name if is_on_store(run_dir) else str(run_dir)


def open_store(url: str) -> Store:
    """Raises RunDirectoryError for a URL that is no place for a run. Nothing is looked up yet."""
    if not url.startswith("s3://"):
        raise RunDirectoryError(f"{mask(url)} cannot hold a run; give a folder, or s3://bucket/folder")
    location = resolve(url)
    return Store(location.at(location.path.rstrip("/")))
