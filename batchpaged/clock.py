"""A wall clock that never jumps: set once, when the process starts.

What a unit took is the difference of two of its readings; the system's clock may be set in between.
"""

import time

_START = time.time() - time.monotonic()


def now() -> float:
    """Seconds since 1970."""
    return _START + time.monotonic()
