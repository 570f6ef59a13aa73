"""The nearest valid spelling of a key or a value."""

import difflib
from collections.abc import Iterable


def nearest(given: str, valid: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The member of `valid` most like `given`, whatever the case; None where none comes near."""
    by_folded = {name.casefold(): name for name in valid}
    found = difflib.get_close_matches(given.casefold(), by_folded, n=1, cutoff=cutoff)
    return by_folded[found[0]] if found else None
