"""What every row and every choice takes where nothing is said: a default never changes by chance.

tests/golden/usual.txt is no witness: whether a value is the paper's or the framework's is for the
executed numbers and for parity/. A change that is meant:

    python tests/objective/test_usual.py --write

and a line in the changelog.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

from rows import ROWS, STAGES, plan

from grpo_cli.objective.choice import Choice

KEPT = Path(__file__).parent.parent / "golden" / "usual.txt"
ASKED = {"clip_cov_seed": 3, "rejection_threshold": 0.01}
"""Of rows that have no value of their own."""


def signature(row: str) -> str:
    """What a row is, in one line, with every number in it."""
    needs = {
        "clip_cov_seed": ROWS[row].surrogate.name == "clip-cov",
        "rejection_threshold": ROWS[row].correction.name == "openrlhf/seq-binary-kl-mask",
    }
    given = {name: value for name, value in ASKED.items() if needs[name]}
    made = plan(row, hyperparameters=given).objective({}, advantages_given=False).signature
    return made.rpartition("|v:")[0]


def usual(choice: Choice) -> str:
    """A choice's usual values, and what else is said of it."""
    numbers = [f"{name}={value}" for name, value in choice.defaults.items()]
    flags = ("absent", "given", "in_reward", "per_response", "total")
    window = [f"window:{choice.window}"] if choice.window else []
    return " ".join([*numbers, *(flag for flag in flags if getattr(choice, flag)), *window])


def lines() -> Iterator[str]:
    """All rows, then all choices."""
    yield from map(signature, ROWS)
    for stage, found in STAGES.items():
        for name, choice in found.choices.items():
            yield f"{stage} {name}: {usual(choice)}".rstrip(": ")


def test_nothing_usual_changes_by_chance() -> None:
    kept = KEPT.read_text(encoding="utf-8").splitlines()
    changed = [row for row in difflib.ndiff(kept, [*lines()]) if row[0] in "+-"]
    assert not changed, "\n".join(changed)


if __name__ == "__main__" and "--write" in sys.argv:
    KEPT.write_text("".join(f"{line}\n" for line in lines()), encoding="utf-8")
