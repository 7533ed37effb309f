"""What a process frees goes back to the system: its peak is what it holds, not what it held.

glibc keeps freed blocks of up to 32 MB for later, in an arena for every few threads. A round's
vectors are of that size and have no later: a model of 20 MB costs 80 to 100 MB of freed blocks.
"""

import ctypes
from typing import Final

# <malloc.h>
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_BIG: Final = 256 * 1024


def give_back() -> None:
    """From now on, map big blocks one by one, and keep two arenas; nothing without glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _BIG)
        mallopt(_M_ARENA_MAX, 2)
