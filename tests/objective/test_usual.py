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
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rows import ROWS, STAGES, VARIANTS, plan

from grpo_cli.engine.probe import probe
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.pipeline import evaluate

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


SETTINGS = {
    "max_completion_length": 512,
    "num_items_in_batch": 30,
    "gradient_accumulation_steps": 1,
    "steps_per_generation": 1,
    "response_length": 9,
    "clip_cov_seed": 1,
    "rejection_threshold": 0.1,
}
COLUMNS = ("log_probs_old", "log_probs_ref", "log_probs_rollout")


def changing(objective, batch):
    """The columns that change J or its gradient."""
    before = evaluate(batch, objective)
    steps = np.linspace(0.01, 0.4, batch.responses.total)
    for name in COLUMNS:
        after = evaluate(replace(batch, **{name: getattr(batch, name) - steps}), objective)
        same = np.array_equal(after.gradient, before.gradient)
        if not same or not np.array_equal(after.record_objective, before.record_objective):
            yield name


@pytest.mark.parametrize("given", [False, pytest.param(True, marks=pytest.mark.more)])
def test_what_changes_a_row_is_what_it_needs(given):
    """Of a framework's rows that drop every response of this batch, or none, nothing changes."""
    batch = probe()
    tokens, responses = batch.responses.total, batch.responses.count
    batch = replace(
        batch,
        values=np.linspace(-1.0, 1.0, tokens),
        sum_pi_squared=np.full(tokens, 0.3),
        reward_baselines=np.linspace(0.0, 1.0, responses),
    )
    for name in VARIANTS:
        objective = plan(name).objective(SETTINGS, advantages_given=given)
        found, needed = {*changing(objective, batch)}, {*objective.needed_log_probs}
        assert found <= needed, name
        assert found == needed or "/" in name, name


@pytest.mark.parametrize(
    ("row", "values", "needed"),
    [
        ("grpo", {"beta": 0.0}, ["log_probs_old"]),
        ("opo", {}, []),
        ("scale-rl", {}, ["log_probs_rollout"]),
        ("trl/grpo", {"off_policy_mask_threshold": None}, ["log_probs_old"]),
        ("trl/grpo", {"off_policy_mask_threshold": 0.5}, ["log_probs_old", "log_probs_rollout"]),
        ("grpo-k1", {"kl_weight": "ratio"}, ["log_probs_old", "log_probs_ref"]),
        ("nemo-rl/on-policy", {"beta": 0.0}, []),
    ],
)
def test_settings_decide_too(row, values, needed):
    objective = plan(row).objective(SETTINGS | values, advantages_given=False)
    assert [*objective.needed_log_probs] == needed


if __name__ == "__main__" and "--write" in sys.argv:
    KEPT.write_text("".join(f"{line}\n" for line in lines()), encoding="utf-8")
