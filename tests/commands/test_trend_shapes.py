"""All findings of ``grpo trend`` in logs of one series, of many shapes and under several names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import answer
from files import expressions

STEP = np.arange(60.0)
SHAPES: dict[str, Callable[[Any], Any]] = {
    "noise": lambda z: z,
    "noise that neighbours share": lambda z: np.convolve(z, [1.0, 0.7, 0.4, 0.2], "same"),
    "higher from step 30 on": lambda z: z + 6.0 * (STEP >= 30),
    "lower from step 30 on": lambda z: z - 6.0 * (STEP >= 30),
    "a little lower from step 40 on": lambda z: z - 2.5 * (STEP >= 40),
    "lower from step 54 on": lambda z: z - 8.0 * (STEP >= 54),
    "higher from step 20 to 40": lambda z: z + 8.0 * ((STEP >= 20) & (STEP < 40)),
    "lower from step 20 to 24": lambda z: z - 8.0 * ((STEP >= 20) & (STEP < 24)),
    "lower in step 57 and later": lambda z: z - 9.0 * (STEP >= 57),
    "two levels": lambda z: z - 6.0 * (STEP >= 20) - 9.0 * (STEP >= 40),
    "rises from step 30 on": lambda z: z + 1.2 * np.maximum(STEP - 30, 0.0),
    "falls from step 30 on": lambda z: z - 1.2 * np.maximum(STEP - 30, 0.0),
    "falls slowly from step 10 on": lambda z: z - 0.2 * np.maximum(STEP - 10, 0.0),
    "rises throughout": lambda z: z + 0.5 * STEP,
    "falls throughout": lambda z: z - 0.5 * STEP,
    "rises throughout, and by a level": lambda z: z + 0.4 * STEP + 9.0 * (STEP >= 35),
    "falls throughout, and by a level": lambda z: z - 0.4 * STEP - 9.0 * (STEP >= 35),
    "a spike": lambda z: z + 60.0 * (STEP == 41),
    "two spikes side by side": lambda z: z + 60.0 * np.isin(STEP, (30, 31)),
    "spikes and a gap": lambda z: z + 60.0 * np.isin(STEP, (22, 24, 37)),
    "a spike in each 9th step": lambda z: z + 60.0 * (STEP % 9 == 4),
    "a spike in the first steps": lambda z: z + 60.0 * (STEP == 1),
    "a spike, then a level": lambda z: z - 60.0 * (STEP == 25) - 7.0 * (STEP >= 33),
    "a spike one step before a level": lambda z: z + 40.0 * (STEP == 29) + 8.0 * (STEP >= 30),
    "a spike two steps before a level": lambda z: z + 40.0 * (STEP == 28) - 8.0 * (STEP >= 30),
    "a spike one step before it falls": lambda z: z + 40.0 * (STEP == 29) - 8.0 * (STEP >= 30),
    "a spike that goes back slowly": lambda z: z + 60.0 * (STEP >= 30) * 0.6 ** abs(STEP - 30),
    "grows by a factor": lambda z: z + 2.0 ** np.minimum(STEP / 5.0, 9.0),
    "constant from step 35 on": lambda z: np.where(STEP < 35, z, z[35]),
    "more noise from step 30 on": lambda z: np.where(STEP < 30, z, 5.0 * z),
}
LEVELS = {
    "reward": (0.5, 0.03),
    "kl": (0.02, 0.002),
    "entropy": (1.2, 0.05),
    "grad_norm": (0.6, 0.05),
    "completions/mean_length": (300.0, 9.0),
    "clip_ratio/region_mean": (0.02, 0.002),
}
"""What a trainer logs: the name, the level and the noise; numbers below 0 are 0."""


def all_findings(name: str, folder: Path) -> Iterator[str]:
    level, wide = LEVELS[name]
    for at, (shape, made) in enumerate(SHAPES.items()):
        values = level + wide * made(np.random.default_rng(at).standard_normal(len(STEP)))
        log = [
            {"step": step, name: round(max(value, 0.0), 6)}
            for step, value in enumerate(values.tolist())
        ]
        path = folder / "trainer_state.json"
        path.write_text(json.dumps({"log_history": log}))
        found = answer("trend", path)
        yield f"{shape}: last good step {found.get('last_good_step')}"
        for one in found["findings"]:
            score = one["score"] and float(f"{one['score']:.5g}")
            span = f"{one['onset']} to {one['end']}, seen {one['seen']}, worst {one['worst_step']}"
            yield f"  {one['severity']} {one['kind']} {span}, {score}: {one['sentence']}"


@pytest.mark.parametrize(
    "name", ["findings", pytest.param("findings_more", marks=pytest.mark.more)]
)
def test_all_findings_of_series_of_many_shapes(name: str, tmp_path: Path) -> None:
    path = Path(__file__).parent / "cases" / f"{name}.txt"
    expressions(path, {"findings": lambda name: [*all_findings(name, tmp_path)]})
