"""Would Page's CUSUM on standardised residuals see what ``grpo trend`` does not?

    python tests/benchmarks/cusum.py --runs 60    # some minutes

Each value is compared with what its past (thirty steps at most; a level, or a Theil–Sen line where
Mann–Kendall sees a trend) says of it one step ahead, and divided by the past's noise as if
neighbours were not correlated, as ``departures`` has it. The two sums S = max(0, S + r − k) begin
anew at 0; what passes h is an alarm, and the change began where the sum left 0 last. h is set with
seeds 1 to 3, so that no more null series than grpo help runs states for ``trend`` cry wolf: 0.25 %
with a correlation of neighbours up to 0.3, 1.5 % with 0.6, 4.5 % with 0.8.

References:
    Page, Continuous inspection schemes, 1954.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

ROOT = Path(__file__).parent.parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from grpo_cli.batch import F64  # noqa: E402
from grpo_cli.commands.trend.onsets import (  # noqa: E402
    _TREND,
    LEAST_PAST,
    PAST,
    _clean,
    _lines,
    mann_kendall,
    onset,
)
from tests.benchmarks.trend import BASES, CORRELATIONS, LENGTHS, WITHIN, series  # noqa: E402

BUDGET = {0.0: 0.0025, 0.3: 0.0025, 0.6: 0.015, 0.8: 0.045}
SLACKS, BOUNDS = (0.25, 0.5, 1.0), (2.0, 3.0, np.inf)
STEPS, AT = 60, 30


def residuals(values: F64) -> F64:
    """[n] one step ahead, in standard deviations; 0 where there is too little past."""
    values = _clean(values)
    places = np.arange(LEAST_PAST, len(values))
    pasts, found = np.minimum(places, PAST), np.zeros(len(values))
    slopes = mann_kendall(values[None], places)[0]
    for size in dict.fromkeys(pasts.tolist()):
        some = pasts == size
        past = sliding_window_view(values, size)[places[some] - size]
        sloping = np.abs(slopes[some]) > _TREND[size >= 20]
        level, slope, left = (one[0] for one in _lines(past[None], sloping[None]))
        square = (left * left).sum(axis=1) / (size - 2)
        pairs = (left[:, 1:] * left[:, :-1]).sum(axis=1) / (size - 2)
        correlation = pairs / np.where(square, square, 1.0)
        correlation = np.clip(correlation + (1 + 4 * correlation) / size, 0.0, 0.95)
        noise = np.sqrt(square * (1 + correlation) / (1 - correlation))
        noise *= np.sqrt(1 + np.where(slope, 4, 1) / size) * (1 + 4 / size)
        ahead = values[places[some]] - (level + slope)
        found[places[some]] = ahead / np.where(noise, noise, np.inf)
    return found


def sums(left: F64, slack: float) -> F64:
    """[2, n] the upward and the downward sum."""
    found = np.zeros((2, len(left)))
    for at in range(1, len(left)):
        both = np.array((left[at], -left[at]))
        found[:, at] = np.maximum(0.0, found[:, at - 1] + both - slack)
    return found


def began(found: F64, height: float) -> int | None:
    """Where the sum that passes the height first left 0."""
    passed = [(int(np.flatnonzero(one > height)[0]), one) for one in found if one.max() > height]
    if not passed:
        return None
    at, one = min(passed, key=lambda pair: pair[0])
    return int(np.flatnonzero(one[:at] == 0.0)[-1]) + 1


def heights(seeds: range, runs: int) -> dict[tuple[float, float], float]:
    """(slack, bound) → the height that keeps to the budget."""
    peaks: dict[tuple[float, float], dict[float, list[float]]] = {}
    for seed, count, correlation, run in product(seeds, LENGTHS, CORRELATIONS, range(runs)):
        for base, heavy in product(BASES, (False, True)):
            values = series([seed, count, run, heavy], count, correlation, base, heavy=heavy)
            left = residuals(values)
            for slack, bound in product(SLACKS, BOUNDS):
                top = float(sums(np.clip(left, -bound, bound), slack).max())
                of_pair = peaks.setdefault((slack, bound), {})
                of_pair.setdefault(BUDGET[correlation], []).append(top)
    return {
        pair: max(float(np.quantile(tops, 1 - share)) for share, tops in each.items())
        for pair, each in peaks.items()
    }


def main() -> None:
    """Prints how often each sees planted changes within five steps, on seeds not used before."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=20261126)
    parser.add_argument("--runs", type=int, default=60)
    given = parser.parse_args()
    known = heights(range(1, 4), max(given.runs // 3, 1))
    ramp = np.maximum(np.arange(STEPS) - (AT - 1), 0)
    planted = {f"shift of {size}": size * (ramp > 0) for size in (2, 3, 4, 6)}
    planted |= {f"drift of {size} a step": size * ramp for size in (0.25, 0.5, 1.0)}
    for (name, change), correlation in product(planted.items(), (0.0, 0.3, 0.6)):
        seen = dict.fromkeys(["trend", *known], 0)
        for run in range(given.runs):
            noise = series([given.seed, run], STEPS, correlation, "level", heavy=False)
            first = onset(noise + change, drift_up=True)
            seen["trend"] += first is not None and abs(first.at - AT) <= WITHIN
            left = residuals(noise + change)
            for pair, height in known.items():
                at = began(sums(np.clip(left, -pair[1], pair[1]), pair[0]), height)
                seen[pair] += at is not None and abs(at - AT) <= WITHIN
        best = max(known, key=lambda pair: seen[pair])
        shares = f"trend {seen['trend'] / given.runs:.0%}, CUSUM {seen[best] / given.runs:.0%}"
        print(
            f"{name}, {correlation}: {shares} (k {best[0]}, residuals up to {best[1]})", flush=True
        )


if __name__ == "__main__":
    main()
