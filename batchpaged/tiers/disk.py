"""The disk tier: a file of blocks, each checked when it is read again."""

import os
import tempfile
from pathlib import Path

import numpy as np
import xxhash


class LostBlockError(Exception):
    """What a slot should hold cannot be read from it any more."""


class DiskSlots:
    """A file with room for `num_slots` blocks of `block_bytes` bytes.

    It has no name where the system allows that, and is deleted when it is closed or the process ends, however it ends. Not for several
    threads.
    """

    def __init__(self, folder: Path, num_slots: int, block_bytes: int) -> None:
        """Raises OSError if the folder does not take the file. Its room is taken as slots are first written."""
        self.num_slots = num_slots
        self._block_bytes = block_bytes
        self._file = tempfile.TemporaryFile(prefix="batchpaged-blocks-", dir=folder, buffering=0)
        self._digests: dict[int, int] = {}  # of what was written

    def close(self) -> None:
        """The file is gone from here on."""
        self._file.close()

    def write(self, slot: int, row: np.ndarray) -> None:
        """row: uint8 [block_bytes]. Raises OSError; the slot is lost then."""
        self.lose(slot)
        digest = xxhash.xxh3_64_intdigest(row)
        left, offset = memoryview(row), slot * self._block_bytes
        while left:
            num_bytes = os.pwrite(self._file.fileno(), left, offset)
            left, offset = left[num_bytes:], offset + num_bytes
        self._digests[slot] = digest

    def lose(self, slot: int) -> None:
        """What it should hold is not there to be written."""
        self._digests.pop(slot, None)

    def read(self, slot: int, row: np.ndarray) -> None:
        """Into row, uint8 [block_bytes]. Raises LostBlockError if that is not what was written."""
        try:
            self._read(slot * self._block_bytes, memoryview(row))
        except OSError as error:
            raise LostBlockError(f"slot {slot}: {error.strerror}") from error
        if xxhash.xxh3_64_intdigest(row) != self._digests.get(slot):
            raise LostBlockError(f"slot {slot} does not hold what was written to it")

    def _read(self, offset: int, left: memoryview) -> None:
        while left:
            num_bytes = os.preadv(self._file.fileno(), [left], offset)
            if not num_bytes:  # what is in memory already might be right, from an earlier time
                raise LostBlockError("the file has been cut")
            left, offset = left[num_bytes:], offset + num_bytes
