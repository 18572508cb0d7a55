"""Logs alone, without tokens: what trainers write of their metrics, with known faults.

Every series is autocorrelated noise with heavy tails on what such a metric does in a healthy run,
positive ones on a logarithmic scale.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from running.kinds import Kind, ramp  # noqa: F401  (paths use it)
from running.simulate import F64, STEPS, Random, correlated

Series = dict[str, F64]

_TABLE = json.loads(Path(__file__).with_suffix(".json").read_bytes())
NAMES: Mapping[str, Mapping[str, str]] = _TABLE["names"]
"""Framework → the series here → the name that it logs."""


def healthy(random: Random) -> Series:
    """The series of a run that learns."""
    correlation, heavy = float(random.choice([0.0, 0.3, 0.6])), bool(random.random() < 0.5)

    def noise(size: float) -> F64:
        drawn = correlated(random, STEPS, correlation, heavy=heavy)
        return size * drawn.clip(-6.0, 6.0)

    time = np.arange(STEPS) / STEPS
    learnt = 1.0 - np.exp(-float(random.uniform(1.0, 4.0)) * time)
    grown = 0.001 + 0.03 * learnt**2
    accuracy, form = 0.2 + 0.4 * learnt + noise(0.03), (0.6 + 0.3 * learnt + noise(0.02)).clip(0, 1)
    return {
        "accuracy": accuracy,
        "format": form,
        "reward": accuracy + 0.1 * form,
        "eval": 0.2 + 0.35 * learnt + noise(0.03),
        "reward_std": np.exp(noise(0.08)) * (0.42 - 0.1 * learnt),
        "entropy": np.exp(noise(0.04) - 0.25 * learnt) * random.uniform(0.4, 1.8),
        "kl": np.exp(noise(0.12)) * grown,
        "gradient": np.exp(noise(0.15)) * random.uniform(0.05, 0.6),
        "loss": noise(0.01),
        "length": np.exp(noise(0.04) + 0.15 * learnt) * random.uniform(300, 1500),
        "truncated": (np.exp(noise(0.25)) * 0.03).clip(0.0, 1.0),
        "dead": (0.3 + noise(0.05)).clip(0.0, 1.0),
        "clipped": (np.exp(noise(0.3)) * 0.004).clip(0.0, 1.0),
        "mismatch": np.exp(noise(0.15)) * random.uniform(0.002, 0.02),
        "rate": np.full(STEPS, 1e-6),
    }


def names(*ours: str) -> str:
    """A pattern of what these series are logged as, a run's or a tracker's prefix before it."""
    found = {each[one] for each in NAMES.values() for one in ours if one in each}
    return r"(.*/)?(" + "|".join(found) + ")"


@dataclass(frozen=True)
class Planted:
    """A fault of a log: an entry of ``logs.json``.

    Attributes:
        series: what it changes, and ``way`` how these move.
        steps: in how many, as an expression of ``random``.
        path: what they are multiplied by, of ``since`` the onset and ``steps``.
        most: what they are cut at.
        more: of its kind.
    """

    name: str
    series: list[str]
    way: str
    path: str
    steps: str = "0"
    most: float = np.inf
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        return Kind(self.name, None, {names(*self.series): self.way}, **self.more)

    def change(self, series: Series, onset: int, random: Random) -> None:
        """What becomes of the series of a healthy run."""
        known = globals() | {"steps": int(eval(self.steps, {"random": random}))}
        later = [eval(self.path, known | {"since": at}) for at in range(STEPS - onset)]
        factor = np.array([1.0] * onset + later)
        for name in self.series:
            changed = series[name] * factor
            series[name] = changed if np.isinf(self.most) else changed.clip(0.0, self.most)


PLANTED = [Planted(**one) for one in _TABLE["planted"]]
HEALTHY_LOG = Kind("healthy", None, {}, sound=True)


def _renamed(series: Series, framework: str) -> Series:
    return {theirs: series[ours] for ours, theirs in NAMES[framework].items()}


def _trainer_state(series: Series, steps: int) -> str:
    logged = _renamed(series, "trl")
    rows = [
        {**{name: float(f"{values[at]:.6g}") for name, values in logged.items()}, "step": at + 1}
        for at in range(steps)
    ]
    return json.dumps({"global_step": steps, "log_history": rows})


def _verl(series: Series, steps: int) -> str:
    logged = _renamed(series, "verl")
    return "".join(
        json.dumps({"step": at + 1, "data": {name: float(v[at]) for name, v in logged.items()}})
        + "\n"
        for at in range(steps)
    )


def _prime_rl(series: Series, steps: int) -> str:
    logged = _renamed(series, "prime-rl")
    return "".join(
        json.dumps({"step": at, **{name: float(v[at]) for name, v in logged.items()}}) + "\n"
        for at in range(steps)
    )


def _wandb(series: Series, steps: int) -> str:
    """A CSV of the history, as W&B exports it for one run."""
    logged = _renamed(series, "trl")
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(["Step", *[f"my-run - train/{name}" for name in logged]])
    for at in range(steps):
        table.writerow([at + 1, *(f"{values[at]:.6g}" for values in logged.values())])
    return text.getvalue()


FILES: Mapping[str, tuple[str, int, Callable[[Series, int], str]]] = {
    "trainer_state.json": ("trainer_state.json", 1, _trainer_state),
    "verl's JSONL": ("metrics.jsonl", 1, _verl),
    "prime-rl's JSONL": ("metrics.jsonl", 0, _prime_rl),
    "CSV of W&B": ("export.csv", 1, _wandb),
}
"""What a log is → its file's name, the number of its first step, and how it is written."""
FRAMEWORKS = ("trl", "verl", "prime-rl", "trl")
"""Whose names each of these files has."""
