"""What a block costs in each way to have it again."""

from dataclasses import dataclass

_NEWEST = 0.2  # weight of the newest of some measurements


@dataclass
class TierCosts:
    """Seconds, as measured on this machine: at start, and those of the disk ever again."""

    token: float  # to compute one more token of a prompt
    save: float  # to bring a block from the pool to host memory
    load: float  # and back
    read: float = float("inf")  # to bring one from disk to host memory
    has_disk_failed: bool = False
    wait: float = 0.0  # for a block to be written, until its place in host memory can be taken by another one

    def host_pays(self, block_size: int) -> bool:
        """Whether to save and load a block takes less than to compute its tokens."""
        return self.save + self.load < self.token * block_size

    def disk_pays(self, block_size: int) -> bool:
        """Whether to write a block, while the engine goes on, read and load it does."""
        return not self.has_disk_failed and self.wait + self.read + self.load < self.token * block_size

    def gain(self, block_size: int, is_on_disk: bool) -> float:
        """Seconds saved by loading a stored block."""
        return self.token * block_size - self.load - (self.read if is_on_disk else 0)

    def note_read(self, seconds: float) -> None:
        self.read += _NEWEST * (seconds - self.read)

    def note_wait(self, seconds: float) -> None:
        self.wait += _NEWEST * (seconds - self.wait)
