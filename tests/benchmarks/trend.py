"""How often ``grpo trend`` cries wolf, how soon it sees a change, and what it costs.

    python tests/benchmarks/trend.py alarms --seed 101 --runs 300   # simulated runs, null and not
    python tests/benchmarks/trend.py cost --records 16              # beside eval --level batch
    python tests/benchmarks/trend.py cost --records 1 --steps 300 --tokens 430    # steps of 100 kB
    python tests/benchmarks/trend.py cost --records 1 --steps 300 --tokens 430 --one-file

Null series are noise with a correlation of neighbours (AR(1)), normal or heavy-tailed (t with 3
degrees of freedom), on a level, a slope, or a curve that saturates as a reward does. Thresholds
were set with seeds 1 to 3; report others. Real runs: tests/parity/runs.py.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from grpo_cli.batch import F64  # noqa: E402
from grpo_cli.commands.trend.onsets import onset  # noqa: E402

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


def alarms(seed: int, runs: int) -> None:
    """Prints the shares of null series in which an onset is seen, and of planted ones."""
    print("false alarms, of one metric of one run")
    for count in LENGTHS:
        for correlation in CORRELATIONS:
            shares = []
            for base in BASES:
                hits = sum(
                    onset(
                        series([seed, count, run, heavy], count, correlation, base, heavy=heavy),
                        drift_up=True,
                    )
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
                onset(
                    series([seed, run], 60, correlation, "level", heavy=False) + change,
                    drift_up=True,
                )
                for run in range(runs)
            ]
            hits = sum(one is not None and abs(one.at - 30) <= WITHIN for one in found)
            shares.append(f"{correlation}: {hits / runs:.0%}")
        print(f"  {name}, by correlation: {', '.join(shares)}", flush=True)


def dump(folder: Path, steps: int, records: int, tokens: int, *, one_file: bool) -> None:
    """Steps of records of 8 responses with four columns, each in a file, or all in one."""
    for step in range(steps):
        draw = np.random.default_rng(step)
        made = [_record(draw, f"{step}-{at}", tokens) | {"step": step} for at in range(records)]
        name = "run.jsonl" if one_file else f"step_{step}.jsonl"
        with (folder / name).open("a") as stream:
            stream.writelines(f"{json.dumps(one)}\n" for one in made)


def _record(draw: np.random.Generator, name: str, tokens: int) -> dict[str, object]:
    widths = draw.integers(tokens // 2, tokens, 8)
    old = [-draw.exponential(0.5, width) - 1e-3 for width in widths]
    record: dict[str, object] = {
        "id": name,
        "log_probs_old": [row.round(6).tolist() for row in old],
    }
    for column, spread in (("new", 0.05), ("ref", 0.1), ("rollout", 0.01)):
        rows = [row + spread * draw.standard_normal(len(row)) for row in old]
        record[f"log_probs_{column}"] = [np.minimum(row, -1e-6).round(6).tolist() for row in rows]
    return record | {"rewards": draw.integers(0, 2, 8).astype(float).tolist()}


def cost(steps: int, records: int, tokens: int, repeats: int, *, one_file: bool) -> None:
    """Prints processor time beside that of eval's totals, of the same bytes."""
    from grpo_cli.commands.trend.findings import findings
    from grpo_cli.commands.trend.run import Run
    from grpo_cli.engine import Evaluation, Reader, memory
    from grpo_cli.records.open.folders import files
    from grpo_cli.variants.plan import plan

    gc.disable()  # as the command has it: what was imported is never looked at again
    memory.settle()
    np.seterr(all="ignore")
    with tempfile.TemporaryDirectory() as folder:
        dump(Path(folder), steps, records, tokens, one_file=one_file)
        places, chosen = files([folder]), plan("grpo")
        size = sum(Path(one).stat().st_size for one in places)
        times: dict[str, list[float]] = {"eval --level batch": [], "trend": []}
        for _ in range(repeats):  # in turn, since other processes come and go
            begun = time.process_time()
            for _ in Evaluation(Reader(places), chosen, encode=None):
                pass
            times["eval --level batch"].append(time.process_time() - begun)
            begun = time.process_time()
            findings(Run(Reader(places), chosen).read())
            times["trend"].append(time.process_time() - begun)
    best = {name: min(each) for name, each in times.items()}
    for name, seconds in best.items():
        print(f"{name}: {seconds:.3f} s for {size / 1e6:.0f} MB in {steps} steps")
    print(f"trend / eval: {best['trend'] / best['eval --level batch']:.2f}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("alarms", "cost"))
    parser.add_argument("--seed", type=int, default=101)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--records", type=int, default=16)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--one-file", action="store_true")
    given = parser.parse_args()
    if given.what == "alarms":
        alarms(given.seed, given.runs)
    else:
        sizes = given.steps, given.records, given.tokens, given.repeats
        cost(*sizes, one_file=given.one_file)


if __name__ == "__main__":
    main()
