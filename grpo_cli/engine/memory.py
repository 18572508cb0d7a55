"""Habits of memory that suit a process which decodes and evaluates, and does nothing else."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from functools import cache

_CONTAINERS = 50_000  # decoded lists between two collections; the usual 700 are some 30 records
_KEPT = 31 << 20  # the largest block for which the C library learns to keep memory (malloc(3))
_GROWTH, _LARGE_PAGE = 28 << 20, 2 << 20  # two such blocks are kept; of x86, and of most ARM
_MADV_HUGEPAGE = 14  # linux/mman.h


@cache
def settle() -> None:
    """Once in a process of the command line; a library leaves such things to the program.

    Decoded records hold no cycles, so that looking for some at every 700 lists is in vain (a tenth
    of the time with short responses). And the C library gives pages of more than 128 KiB back at
    once, and gets them anew for the next column, until a larger block was released: this one, no
    page of which is ever touched, saves a third of the page faults with long responses and nine
    of ten with short ones (about another tenth of the time). Arrow's own allocator keeps 25 MB of
    Parquet columns that are done with; the C library's does not.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    gc.set_threshold(_CONTAINERS, 20, 20)
    if not gc.isenabled():  # as the command's start left it: what is there by now stays
        gc.freeze()
        gc.enable()
    bytes(_KEPT)
    if sys.platform == "linux":
        _ask_for_large_pages()


def _ask_for_large_pages() -> None:
    """Asks the kernel to back what the heap grows by with large pages (madvise(2)).

    There are a tenth of the page faults then, which are a tenth of the time of 40 MB of text. The
    blocks are released at once and were never touched: they move the end of the heap.
    """
    library, pointer = ctypes.CDLL(None), ctypes.c_void_p
    library.malloc.restype = pointer
    blocks = [library.malloc(ctypes.c_size_t(_GROWTH)) or 0 for _ in range(2)]
    for block in blocks:
        start = -(-block // _LARGE_PAGE) * _LARGE_PAGE
        size = ctypes.c_size_t(block + _GROWTH - start)
        library.madvise(pointer(start), size, _MADV_HUGEPAGE)
    for block in blocks:
        library.free(pointer(block))
