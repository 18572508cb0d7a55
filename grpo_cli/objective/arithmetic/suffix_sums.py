"""Running sums within responses, without a loop over tokens."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, Segments


def suffix_sums(values: F64, segments: Segments, discount: float) -> F64:
    """[N] Σₛ≥ₜ discount^(s−t)·values[s], s and t in the same segment.

    Each round doubles the reach of every element's sum, so a segment of T elements takes log₂ T
    rounds, and its sums depend on its own elements only.

    References:
        Hillis and Steele, Data Parallel Algorithms, 1986.
    """
    sums = values.copy()
    left = np.repeat(segments.starts + segments.lengths, segments.lengths) - np.arange(len(values))
    reach = 1
    longest = int(segments.lengths.max(initial=0))
    while reach < longest:
        inside = np.flatnonzero(left > reach)
        sums[inside] += discount**reach * sums[inside + reach]
        reach *= 2
    return sums
