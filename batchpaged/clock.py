"""A wall clock that never jumps: set once, when the process starts.

What a unit took is the difference of two of its readings; the system's clock may be set in between.
"""

import time
from datetime import datetime, timezone

_START = time.time() - time.monotonic()


def now() -> float:
    """Seconds since 1970."""
    return _START + time.monotonic()


def utc_now() -> str:
    """By the system's clock, for people: as `utc`."""
    return utc(time.time())


def utc(timestamp: float) -> str:
    """Seconds since 1970 as ISO-8601."""
    return datetime.fromtimestamp(timestamp, timezone.utc).isoformat(timespec="seconds")
