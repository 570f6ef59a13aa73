"""Host memory for blocks of the KV cache: one row of bytes for each, whatever a backend's tensors look like."""

from collections.abc import Callable, Iterable, Sequence

import torch

from batchpaged.attention.block_part import BlockPart
from batchpaged.attention.memory import zeros_on_first_use
from batchpaged.attention.upload import upload


class HostFrames:
    """uint8 [num_frames, block_bytes]: a block's keys and values of all layers, one part after another.

    One row, so that a block crosses to the host, and to disk, in one piece.
    """

    def __init__(self, parts: Sequence[BlockPart], num_frames: int) -> None:
        self._parts = parts
        self._device = parts[0].tensor.device
        self._sizes = [part.block_bytes for part in parts]
        self.block_bytes = sum(self._sizes)
        self.rows = _host_rows(num_frames, self.block_bytes, self._device)
        self._used: dict[int, torch.cuda.Event] = {}  # when a GPU is done with a frame

    def save(self, blocks: Sequence[int], frames: Sequence[int]) -> None:
        """On a GPU in the order of its stream: the rows are there once the stream has come to this point."""
        index = upload(list(blocks), self._device)
        packed = torch.empty(len(blocks), self.block_bytes, dtype=torch.uint8, device=self._device)
        for part, columns in zip(self._parts, packed.split(self._sizes, dim=1), strict=True):
            columns.copy_(part.read(index))
        for frame, row in zip(frames, packed, strict=True):
            self.rows[frame].copy_(row, non_blocking=True)
        self.note_use(frames)

    def load(self, rows: Sequence[torch.Tensor], blocks: Sequence[int]) -> None:
        """rows: uint8 [block_bytes] each, of this object or others."""
        packed = torch.empty(len(blocks), self.block_bytes, dtype=torch.uint8, device=self._device)
        for row, target in zip(rows, packed, strict=True):
            target.copy_(row, non_blocking=True)
        index = upload(list(blocks), self._device)
        for part, columns in zip(self._parts, packed.split(self._sizes, dim=1), strict=True):
            part.write(index, columns)

    def new_row(self) -> torch.Tensor:
        """uint8 [block_bytes] on the host."""
        return torch.empty(self.block_bytes, dtype=torch.uint8, pin_memory=self._device.type != "cpu")

    def note_use(self, frames: Iterable[int]) -> None:
        """What has been asked of a GPU so far reads or writes these."""
        if self._device.type != "cpu":
            event = torch.cuda.Event()
            event.record()
            self._used |= dict.fromkeys(frames, event)

    def wait_for_use(self, frame: int) -> Callable[[], None]:
        """Waits, in any thread, until what was asked so far of this frame is done."""
        event = self._used.pop(frame, None)
        return (lambda: None) if event is None else event.synchronize


def _host_rows(num_frames: int, block_bytes: int, device: torch.device) -> torch.Tensor:
    shape = (num_frames, block_bytes)
    if device.type == "cpu":
        return zeros_on_first_use(num_frames * block_bytes).view(shape)
    return torch.empty(shape, dtype=torch.uint8, pin_memory=True)
