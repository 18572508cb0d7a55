"""A run whose engine drifts away from its trainer from some step on."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

BEGINS = 24


def record(draw: random.Random, step: int, number: int) -> dict[str, Any]:
    size = 0.01 if step < BEGINS else 0.01 + 0.01 * (step - BEGINS + 1)
    made: dict[str, Any] = {"id": f"{step}-{number}", "step": step, "prompt": f"what is {number}?"}
    columns: dict[str, list[list[float]]] = {
        name: [] for name in ("log_probs_new", "log_probs_old", "log_probs_rollout")
    }
    for _ in range(4):
        old = [round(-draw.expovariate(1.0) - 0.3, 6) for _ in range(draw.randint(4, 16))]
        columns["log_probs_old"].append(old)
        for name, noise in (("log_probs_new", 0.1), ("log_probs_rollout", size)):
            moved = (min(one + draw.gauss(0.0, noise), -1e-3) for one in old)
            columns[name].append([round(one, 6) for one in moved])
    rewards = [float(draw.random() < 0.5) for _ in range(4)]
    tokens = [[f"Ġt{at}" for at in range(len(row))] for row in columns["log_probs_old"]]
    return made | columns | {"rewards": rewards, "tokens": tokens}


def drifting(folder: Path, steps: int = 40, records: int = 3) -> list[dict[str, Any]]:
    """Writes a file a step; returns all records."""
    folder.mkdir(parents=True, exist_ok=True)
    draw, everything = random.Random(5), []
    for step in range(steps):
        lines = [record(draw, step, number) for number in range(records)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"step_{step}.jsonl").write_text(text, encoding="utf-8")
        everything += lines
    return everything
