"""Batches made for one question each."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

DUMPS = Path(__file__).parent.parent / "data" / "rollouts"


def record(seed: int, lengths: list[int], rewards: list[float], **more: Any) -> dict[str, Any]:
    """A record whose ratios leave the clip range on both sides, with a reference and an engine."""
    draw = random.Random(seed)
    old = [[-0.6 - draw.expovariate(1.0) for _ in range(length)] for length in lengths]

    def moved(spread: float) -> list[list[float]]:
        return [[min(x + draw.gauss(0.0, spread), -1e-3) for x in row] for row in old]

    return {
        "id": seed,
        "log_probs_new": moved(0.3),
        "log_probs_old": old,
        "log_probs_ref": moved(0.4),
        "log_probs_rollout": moved(0.05),
        "rewards": rewards,
    } | more


def telling(**more: Any) -> list[dict[str, Any]]:
    """Unequal lengths, unequal groups, unequal spreads: nothing agrees by chance."""
    return [
        record(1, [3, 7, 5], [1.0, 0.0, 0.3], **more),
        record(2, [2, 9, 4, 6, 1], [0.7, 0.1, 2.0, 0.1, 0.0], **more),
    ]


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    """The records as JSONL."""
    path.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    return path


def std(values: list[float], ddof: int) -> float:
    """By definition, not by the code under test."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - ddof))
