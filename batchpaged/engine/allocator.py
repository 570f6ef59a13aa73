"""The C library's memory allocator, told to keep what a step frees for the next one."""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_LARGEST = 2**31 - 1
_TOP_PAD = 64 * 2**20


def keep_freed_memory() -> None:
    """Allocate large tensors from the heap, and never shrink it.

    Otherwise each activation tensor of a large step is fresh memory from the system, which has to zero it page by page:
    about a tenth of a prefill step. Does nothing where the C library is not glibc.
    """
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, 2**30) or mallopt(_M_MMAP_THRESHOLD, 2**25)  # the most that older versions take
    mallopt(_M_TRIM_THRESHOLD, _LARGEST)
    mallopt(_M_TOP_PAD, _TOP_PAD)
