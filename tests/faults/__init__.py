"""Faults around real processes: signals, disks, files that change, limits.

``GRPO_FAULTS=N`` repeats what happens at random moments N times (once by default), each time at other
moments; ``GRPO_FAULTS=50`` is what has to hold before a release.
"""

from __future__ import annotations

import os

TIMES = int(os.environ.get("GRPO_FAULTS", "1"))
