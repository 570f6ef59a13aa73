"""The nearest valid spelling of a key or a value."""

import difflib
from collections.abc import Iterable
from pathlib import PurePath


def nearest(given: str, valid: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The member of `valid` most like `given`, whatever the case; None where none comes near."""
    by_folded = {name.casefold(): name for name in valid}
    found = difflib.get_close_matches(given.casefold(), by_folded, n=1, cutoff=cutoff)
    return by_folded[found[0]] if found else None


def nearest_file(given: str, names: Iterable[str]) -> str | None:
    """The file name most like `given`: by what comes before the suffix, which most names share; or nearly the same as a whole."""
    names, suffix = list(names), PurePath(given).suffix
    stems = {name.removesuffix(suffix): name for name in names if name.endswith(suffix)}
    stem = nearest(given.removesuffix(suffix), stems, cutoff=0.6)
    return nearest(given, names, cutoff=0.85) if stem is None else stems[stem]
