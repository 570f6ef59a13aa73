"""Makes the moves that the scheduler plans: between the KV cache, host memory and disk.

Moves on the disk are made by one thread, in their order, while the engine goes on; who needs what such a move brings, or the
place that it empties, waits for it.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import torch

from batchpaged.engine.step import BlockMove, MoveKind
from batchpaged.tiers.costs import TierCosts
from batchpaged.tiers.disk import DiskSlots, LostBlockError
from batchpaged.tiers.frames import HostFrames


class TierStore:
    def __init__(self, frames: HostFrames, disk: DiskSlots | None, costs: TierCosts) -> None:
        """`costs`: those of the disk are kept up to date in it."""
        self._frames = frames
        self._disk = disk
        self._costs = costs
        self._thread = ThreadPoolExecutor(1, "batchpaged-disk") if disk is not None else None
        self._jobs: dict[int, Future[None]] = {}  # the last one on a frame

    def close(self) -> None:
        """Nothing is moved any more: the disk's thread ends once it is through with what it does now, and the file is closed."""
        if self._disk is not None:
            self._thread.shutdown(cancel_futures=True)
            self._disk.close()

    def move(self, moves: Sequence[BlockMove]) -> None:
        """Out of the pool, and between host memory and disk. Saves that follow each other are one copy."""
        saves: list[BlockMove] = []
        for move in moves:
            if move.kind is MoveKind.SAVE:
                saves.append(move)
                continue
            self._save(saves)
            saves = []
            self._start(move)
        self._save(saves)

    def load(self, loads: Sequence[BlockMove]) -> None:
        """Into the pool. Raises LostBlockError, and loads nothing, if something cannot be read."""
        if loads:
            rows = [self._row(load) for load in loads]
            self._frames.load(rows, [load.target for load in loads])
            self._frames.note_use(load.source for load in loads if load.kind is MoveKind.LOAD)

    def _save(self, saves: list[BlockMove]) -> None:
        if not saves:
            return
        begun = time.perf_counter()
        for save in saves:
            self._wait(save.target)
        self._costs.note_wait((time.perf_counter() - begun) / len(saves))
        self._frames.save([save.source for save in saves], [save.target for save in saves])

    def _wait(self, frame: int) -> None:
        """For the place to be empty, or for a read in vain: nobody wants any more what was there."""
        job = self._jobs.pop(frame, None)
        if job is not None:
            job.exception()

    def _start(self, move: BlockMove) -> None:
        if move.kind is MoveKind.WRITE:
            frame, do = move.source, partial(self._write, filled_by=self._jobs.get(move.source))
        else:
            frame, do = move.target, self._read
        self._jobs[frame] = self._thread.submit(do, move, self._frames.wait_for_use(frame))

    def _row(self, load: BlockMove) -> torch.Tensor:
        if load.kind is MoveKind.LOAD_FROM_DISK:
            row = self._frames.new_row()
            self._thread.submit(self._fill, row, load.source).result()
            return row
        job = self._jobs.pop(load.source, None)
        if job is not None:
            job.result()
        return self._frames.rows[load.source]

    # --- in the disk's thread ---

    def _write(self, move: BlockMove, wait_for_use: Callable[[], None], filled_by: Future[None] | None) -> None:
        """`filled_by`: the read, if it was one; where that has failed, a slot with a good checksum would hide it."""
        wait_for_use()
        if filled_by is not None and filled_by.exception() is not None:
            self._disk.lose(move.target)
            return
        try:
            self._disk.write(move.target, self._frames.rows[move.source].numpy())
        except OSError:  # full, or gone: what it holds may be read yet, but nothing more is given to it
            self._costs.has_disk_failed = True

    def _read(self, move: BlockMove, wait_for_use: Callable[[], None]) -> None:
        wait_for_use()
        self._fill(self._frames.rows[move.target], move.source)

    def _fill(self, row: torch.Tensor, slot: int) -> None:
        begun = time.perf_counter()
        try:
            self._disk.read(slot, row.numpy())
        except LostBlockError:
            self._costs.has_disk_failed = True
            raise
        self._costs.note_read(time.perf_counter() - begun)
