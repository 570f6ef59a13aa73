"""The disk tier gives back what it was given, or says that it cannot."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from batchpaged.tiers.disk import DiskSlots, LostBlockError

NUM_BYTES = 1000


def row(number: int) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(number)).integers(0, 256, NUM_BYTES, dtype=np.uint8)


def read(disk: DiskSlots, slot: int) -> np.ndarray:
    found = np.empty(NUM_BYTES, dtype=np.uint8)
    disk.read(slot, found)
    return found


def test_slots_hold_what_was_written_last_and_no_file_is_left(tmp_path: Path) -> None:
    disk = DiskSlots(tmp_path, 4, NUM_BYTES)
    for number, slot in enumerate([3, 0, 1, 3, 2]):
        disk.write(slot, row(number))
    for number, slot in [(1, 0), (2, 1), (4, 2), (3, 3)]:
        assert np.array_equal(read(disk, slot), row(number))
    assert list(tmp_path.iterdir()) == [], "it has no name that could be left behind"


def test_a_bit_that_changed_is_noticed_and_others_are_good(tmp_path: Path) -> None:
    disk = DiskSlots(tmp_path, 2, NUM_BYTES)
    disk.write(0, row(0))
    disk.write(1, row(1))
    changed = row(0)
    changed[500] ^= 1
    os.pwrite(disk._file.fileno(), changed, 0)
    with pytest.raises(LostBlockError, match="slot 0 does not hold"):
        read(disk, 0)
    assert np.array_equal(read(disk, 1), row(1))


def test_a_file_that_was_cut_is_noticed(tmp_path: Path) -> None:
    disk = DiskSlots(tmp_path, 2, NUM_BYTES)
    disk.write(1, row(1))
    os.ftruncate(disk._file.fileno(), NUM_BYTES + 10)
    with pytest.raises(LostBlockError):
        disk.read(1, row(1))  # though what it is read into holds the rest of it, from an earlier time


def test_a_slot_never_written_is_lost(tmp_path: Path) -> None:
    with pytest.raises(LostBlockError):
        read(DiskSlots(tmp_path, 2, NUM_BYTES), 0)


def test_a_write_that_fails_loses_the_slot_and_what_was_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = DiskSlots(tmp_path, 2, NUM_BYTES)
    disk.write(0, row(0))

    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        disk.write(0, row(1))
    with pytest.raises(LostBlockError):
        read(disk, 0)


def test_what_is_written_and_read_in_pieces_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, read_some = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda file, data, offset: write(file, data[:77], offset))
    monkeypatch.setattr(os, "preadv", lambda file, parts, offset: read_some(file, [parts[0][:33]], offset))
    disk = DiskSlots(tmp_path, 2, NUM_BYTES)
    disk.write(1, row(5))
    assert np.array_equal(read(disk, 1), row(5))
