"""How often ``grpo trend`` raises false alarms, and how soon it sees a change, in simulated runs.

    python tests/benchmarks/trend.py --seed 101 --runs 300

Null series are noise with a correlation of neighbours (AR(1)), normal or heavy-tailed (t with 3
degrees of freedom), on a level, a slope, or a curve that saturates as a reward does. Thresholds
were set with seeds 1 to 3; report others. Real runs: tests/parity/runs.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from grpo_cli.batch import F64  # noqa: E402
from grpo_cli.commands.trend.detectors import Change, changes  # noqa: E402
from grpo_cli.commands.trend.watched import BOTH, UP, Watch  # noqa: E402

LENGTHS, CORRELATIONS = (30, 60, 200), (0.0, 0.3, 0.6, 0.8)
BASES: dict[str, Callable[[F64], F64]] = {
    "level": lambda share: 0.0 * share,
    "slope": lambda share: 6.0 * share,
    "curve": lambda share: 8.0 * (1.0 - np.exp(-4.0 * share)),
}
WITHIN = 5


def noise(draw: np.random.Generator, count: int, correlation: float, *, heavy: bool) -> F64:
    """[n] of standard deviation 1."""
    fresh = draw.standard_t(3, count) / np.sqrt(3) if heavy else draw.standard_normal(count)
    values = fresh.copy()
    for at in range(1, count):
        values[at] = correlation * values[at - 1] + np.sqrt(1 - correlation**2) * fresh[at]
    return values


def series(seed: list[int], count: int, correlation: float, base: str, *, heavy: bool) -> F64:
    """[n] a null series."""
    draw = np.random.default_rng(seed)
    share = np.arange(count) / count
    return noise(draw, count, correlation, heavy=heavy) + BASES[base](share)


def onset(values: F64) -> Change | None:
    """The first change of a series, of which a drift up counts."""
    (found,) = changes([(Watch("series", BOTH, UP), values)])
    return next((one for one in found if not one.info), None)


def alarms(seed: int, runs: int) -> None:
    """Prints the shares of null series in which an onset is seen, and of planted ones."""
    print("false alarms, of one metric of one run")
    for count in LENGTHS:
        for correlation in CORRELATIONS:
            shares = []
            for base in BASES:
                hits = sum(
                    onset(series([seed, count, run, heavy], count, correlation, base, heavy=heavy))
                    is not None
                    for heavy in (False, True)
                    for run in range(runs)
                )
                shares.append(f"{base} {hits / (2 * runs):.2%}")
            print(f"  {count} steps, correlation {correlation}: {', '.join(shares)}", flush=True)
    print(f"seen within {WITHIN} steps, 60 steps, a change at 30 (in standard deviations)")
    ramp = np.maximum(np.arange(60) - 29, 0)
    planted = {f"shift of {size}": size * (ramp > 0) for size in (3, 4, 6)}
    planted |= {f"drift of {size} a step": size * ramp for size in (0.5, 1.0)}
    for name, change in planted.items():
        shares = []
        for correlation in (0.0, 0.3, 0.6):
            found = [
                onset(series([seed, run], 60, correlation, "level", heavy=False) + change)
                for run in range(runs)
            ]
            hits = sum(one is not None and abs(one.at - 30) <= WITHIN for one in found)
            shares.append(f"{correlation}: {hits / runs:.0%}")
        print(f"  {name}, by correlation: {', '.join(shares)}", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=101)
    parser.add_argument("--runs", type=int, default=300)
    given = parser.parse_args()
    alarms(given.seed, given.runs)


if __name__ == "__main__":
    main()
