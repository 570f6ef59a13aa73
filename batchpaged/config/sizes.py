"""Byte sizes as people write them: "2GiB", "512MiB", "1.5GB"."""

import re
from decimal import Decimal

SIZE_PATTERN = r"^\s*[0-9]+(\.[0-9]+)?\s*([KMGTkmgt][iI]?)?[bB]\s*$"
_SIZE = re.compile(r"\s*(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<prefix>[kmgt]?)(?P<binary>i?)b\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(text: str) -> int:
    """Number of bytes in `text`; KiB, MiB, GiB and TiB count in 1024s, kB, MB, GB and TB in 1000s.

    Raises ValueError for anything else: without a unit a number could as well mean blocks.
    """
    match = _SIZE.fullmatch(text)
    if match is None or (match["binary"] and not match["prefix"]):
        raise ValueError('must be a size with a unit, like "2GiB", "512MiB" or "1.5GB"')
    base = 1024 if match["binary"] else 1000
    num_bytes = int(Decimal(match["number"]) * base ** _POWERS[match["prefix"].lower()])
    if num_bytes < 1:
        raise ValueError("must be more than 0 bytes")
    return num_bytes


def format_bytes(num_bytes: int) -> str:
    """The size as people read it: `512 B`, `1.5 GiB`; above a KiB with one decimal."""
    size, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1023.95:
            break
        size, unit = size / 1024, larger
    return f"{num_bytes} B" if unit == "B" else f"{size:,.1f} {unit}"
