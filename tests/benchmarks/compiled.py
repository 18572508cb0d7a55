"""The loop of the peer that compiles it; numba keeps what it made beside this file."""

import math

from numba import njit


@njit(cache=True)
def response_value(new, old, ref, a):
    total = 0.0
    for t in range(len(new)):
        ratio, gap = math.exp(new[t] - old[t]), ref[t] - new[t]
        clipped = min(ratio * a, min(max(ratio, 0.8), 1.2) * a)
        total += clipped - 0.04 * (math.exp(gap) - gap - 1.0)
    return total / len(new)
