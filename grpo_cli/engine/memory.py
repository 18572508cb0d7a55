"""Habits of memory that suit a process which decodes and evaluates, and does nothing else."""

from __future__ import annotations

import gc
import os
from functools import cache

_CONTAINERS = 50_000  # decoded lists between two collections; the usual 700 are some 30 records
_KEPT = 31 << 20  # the largest block for which the C library learns to keep memory (malloc(3))


@cache
def settle() -> None:
    """Once in a process of the command line; a library leaves such things to the program.

    Decoded records hold no cycles, so that looking for some at every 700 lists is in vain (a tenth
    of the time with short responses). And the C library gives pages of more than 128 KiB back at
    once, and gets them anew for the next column, until a larger block was released: this one, no
    page of which is ever touched, saves a third of the page faults with long responses and nine
    of ten with short ones (about another tenth of the time); a second such block would come from
    what is kept, and its pages be touched. Arrow's own allocator keeps 25 MB of Parquet columns
    that are done with; the C library's does not.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    gc.set_threshold(_CONTAINERS, 20, 20)
    if not gc.isenabled():  # as the command's start left it: what is there by now stays
        gc.freeze()
        gc.enable()
    bytes(_KEPT)
