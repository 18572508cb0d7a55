"""Faults around real processes: signals, disks, files that change, limits.

``GRPO_FAULTS=N`` repeats what happens at random moments N times (once by default), each time at
other moments, and runs every combination, of which only some are run by default.
``GRPO_FAULTS=50`` is what has to hold before a release.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
TIMES = int(os.environ.get("GRPO_FAULTS", "1"))


def some(every: Sequence[T], count: int) -> Sequence[T]:
    """The first so many of them; all where faults are repeated."""
    return every if TIMES > 1 else every[:count]
