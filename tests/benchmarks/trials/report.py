"""The table of the answers, as Markdown; and everything, as JSON."""

from __future__ import annotations

import re
from typing import Any

from trials import verify
from trials.score import Count, shown, table, wilson
from trials.strangers import checking, matching, verifying
from trials.strangers.mistake import KIND, row

GOALS = (
    (verify.RIGHT, "≥ 90 %"),
    (verify.UNKNOWN, "≤ 10 %"),
    (verify.MISLEADING, "≤ 0.5 %"),
    (verify.FALSE, "0"),
    (row(checking.REAL), "0"),
    (row(verifying.NAMED), "≥ 50 %"),
    (row(verifying.MISLED), "≤ 10 %"),
    (row(verifying.GUESSED), "≤ 10 %"),
    (row(verifying.RIGHT), "0 %"),
    (row(checking.NAMED), "≥ 72 %"),
    (row(checking.OTHER), "≤ 8 %"),
    (row(checking.FALSE), "≤ 6 %"),
    (row(matching.FIRST), "≥ 85 %"),
    (row(matching.WRONG), "≤ 1 %"),
    (row(matching.OPEN), "≥ 80 %"),
    (row(matching.OPEN_WRONG), "≤ 1 %"),
)
"""The answers that are counted, and what is to be reached; figures are on the page of answers."""


def markdown(counts: dict[str, Count], seeds: tuple[int, int]) -> str:
    """The table of what is to be reached, and of what else was counted."""
    goals = [(row, shown(counts[row]), goal) for row, goal in GOALS if row in counts]
    known = {row for row, _ in GOALS}
    details = [
        (row, shown(count))
        for row, count in counts.items()
        if row not in known and not row.startswith(KIND)
    ]
    use = "for building" if seeds[0] < 10_000 else "for reporting"
    return "\n\n".join(
        [
            f"Seeds {seeds[0]} to {seeds[1]}, {use}.",
            table(("answer", "today", "to reach"), goals),
            table(("what else was counted", "today"), sorted(details)),
        ]
    )


def missed(counts: dict[str, Count]) -> list[str]:
    """The rows whose 95 % interval excludes what is to be reached."""
    return [row for row, goal in GOALS if row in counts and _excluded(counts[row], goal)]


def _excluded(count: Count, goal: str) -> bool:
    """By the goal's words: ≥ 85 %, ≥ 9 of 10, all; ≤ 1 %, and 0."""
    low, high = wilson(count.hits, count.of)
    if goal == "all":
        return count.hits < count.of
    number = re.match(r"(?:[≥≤] )?([\d.]+)(?: of (\d+)| %)?", goal)
    assert number is not None
    bound = float(number[1]) / float(number[2] or 100)
    return high < bound if goal.startswith("≥") else low > bound


def document(counts: dict[str, Count], seeds: tuple[int, int]) -> dict[str, Any]:
    """Every count with its interval and cases."""
    return {
        "seeds": list(seeds),
        "rows": {row: _detailed(count) for row, count in counts.items()},
    }


def _detailed(count: Count) -> dict[str, Any]:
    cases = [
        {**case, "task": case["task"].name, "seed": case["task"].seed, "again": case["task"].words}
        for case in count.cases
    ]
    interval = wilson(count.hits, count.of)
    return {"hits": count.hits, "of": count.of, "interval": interval, "cases": cases}
