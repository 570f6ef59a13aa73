"""How attention is cut into programs. Plain numbers: the plan's flat arrays are made from them without triton."""

from dataclasses import dataclass

# Rows of a tile: the fewest that a matrix instruction takes; the fewest that one of four warps takes; what registers hold.
DECODE_ROWS, GROUP_ROWS, PREFILL_ROWS = 16, 64, 128


@dataclass(frozen=True)
class Tiling:
    """Rows of a tile are its queries times the query heads of a K/V head."""

    tile_rows: tuple[int, ...] = (DECODE_ROWS, GROUP_ROWS, PREFILL_ROWS)  # rising; a tile takes the smallest that holds its rows
    # Positions of one tile's keys lie between two multiples of this, where few queries read many keys: so that enough
    # programs share the work, and the same cuts are made whatever else is in the batch.
    split_keys: int = 512
    splits_every_tile: bool = False  # also where there are queries enough
    key_alignment: int = 1  # a window's first key is read from a multiple of this on; divides split_keys
    skips_mask: bool = True  # keys that all queries of a tile see are attended to without a mask, in a loop compiled by itself

    def __post_init__(self) -> None:
        if self.split_keys % self.key_alignment:
            raise ValueError(f"cuts at multiples of {self.split_keys} are not aligned to {self.key_alignment}")

    @property
    def most_rows(self) -> int:
        return self.tile_rows[-1]


def default_tiling(num_bytes: int) -> Tiling:
    """`num_bytes`: of one number of the queries. Larger tiles of float32 would not fit into shared memory everywhere."""
    return Tiling() if num_bytes < 4 else Tiling(tile_rows=(DECODE_ROWS, GROUP_ROWS))


# One configuration of the kernel, one loop of it and one way to cut a context: sums are taken in the same order for every query.
BATCH_INVARIANT = Tiling(tile_rows=(GROUP_ROWS,), splits_every_tile=True, key_alignment=128, skips_mask=False)
