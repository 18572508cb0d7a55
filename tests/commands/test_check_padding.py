"""When runs of one log-prob at an edge are padding: by the definition, beside what is found."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from grpo_cli import check

Told = tuple[str, int | None, int | None, dict[str, Any]]


def run_of(row: list[float]) -> int:
    """How many tokens at its end are one number; a single one is no run unless it is 0."""
    count = next((at for at, one in enumerate(row[::-1]) if one != row[-1]), len(row))
    return count if count > 1 or row[-1] == 0.0 else 0


def chance(rows: list[list[float]], runs: list[int], right: bool) -> float:
    """X = −ln p − (r − 1)·ln q of each run, with p and q as Laplace has them of other tokens."""
    same = after = after_same = inside = 0
    for row, run in zip(rows, runs, strict=True):
        cut = run if run >= 4 else 0
        kept = range(len(row) - cut) if right else range(cut, len(row))
        hits = {at for at in kept if row[at] == 0.0 or (at and row[at] == row[at - 1])}
        inside, same = inside + len(kept), same + len(hits)
        follows = [at for at in kept if at - 1 in hits]
        after, after_same = after + len(follows), after_same + sum(at in hits for at in follows)
    p = (same + 1) / (inside + 2)
    q = max(p, (after_same + 1) / (after + 2))
    sizes = [-math.log(p) - (run - 1) * math.log(q) if run else 0.0 for run in runs]
    count, total = len(rows), sum(sizes)
    chernoff = count * math.log(total / count) + count - total if total > count else 0.0
    return math.log(2.0) + min(chernoff, math.log(count) - max(sizes))


def padding(rows: list[list[float]], side: str) -> Told | None:
    right = side == "right"
    runs = [run_of(one if right else one[::-1]) for one in rows]
    if max(runs) < 4 or chance(rows, runs, right) > math.log(1e-6):
        return None
    runs = [run if run >= 4 else 0 for run in runs]
    at = runs.index(max(runs))
    value = rows[at][-1 if right else 0]
    alike = len(rows) > 1 and len({*map(len, rows)}) == 1 and len({*runs}) > 1
    count = sum(run > 0 for run in runs)
    evidence = {"responses": count, "of": len(rows), "tokens": sum(runs), "longest": max(runs)}
    severity = "error" if value != 0.0 or alike else "info"
    return severity, at, None, evidence | {"value": value, "side": side}


def padded(draw: np.random.Generator) -> list[list[float]]:
    rows = []
    width, value = int(draw.integers(6, 30)), draw.choice([0.0, 0.0, -1.25])
    zeros, again = draw.choice([0.0, 0.05, 0.3]), draw.choice([0.0, 0.1, 0.5])
    for _ in range(draw.integers(1, 7)):
        row: list[float] = []
        run = int(draw.choice([0, 1, 2, 3, 4, 5, 6, 8, 9]))
        for _ in range(width - run if value else int(draw.integers(4, 40))):
            stays = row and draw.random() < again
            row.append(row[-1] if stays else -float(draw.exponential()) * (draw.random() >= zeros))
        rows.append([*row, *[float(value)] * run])
    return rows


def test_when_runs_are_no_chance():
    draws = [padded(np.random.default_rng([23, seed])) for seed in range(300)]
    for side in ("right", "left"):
        made = draws if side == "right" else [[row[::-1] for row in rows] for rows in draws]
        expected = [padding(rows, side) for rows in made]
        assert 30 < sum(one is not None for one in expected) < 270
        found: dict[int, Told] = {}
        records = [{"log_probs_new": rows, "advantages": [1.0] * len(rows)} for rows in made]
        for one in check(records, limit=0).findings:
            if one.code == "padding" and one.evidence["side"] == side:
                said = (one.severity, one.response, one.token, dict(one.evidence))
                found[int(one.record)] = said
        assert [found.get(at) for at in range(len(made))] == expected
