"""Wrong implementations of TRL's loss, written down independently: each is named for what it is.

The records, the wrong losses and gradients, and the words that count as right are those of the
experiment in tests/benchmarks, whose loss gives what TRL gave (test_answers.py).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from files import each
from planted import record

from grpo_cli import evaluate
from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.compare import Tolerance
from grpo_cli.records import Raw
from grpo_cli.records import record as read
from grpo_cli.variants.plan import plan

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from trials import verify
from trials.task import Task
from trials.wrong.catalogue import MISTAKES
from trials.wrong.expectations import EXPECTATIONS

SEEDS = (0, 1, 2, 3)


@each("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_wrong_implementation_is_named(mistake) -> None:
    """In a real record or a simulated one: the first seed of building that can show it."""
    asked = (verify.ask_one(Task("verify", f"wrong/{mistake.name}", seed)) for seed in SEEDS)
    counts = next(one for one in asked if one)
    cases = [case for count in counts.values() for case in count.cases]
    assert counts[verify.RIGHT].hits == 1, cases
    assert counts[verify.MISLEADING].hits == 0, cases
    assert counts[verify.STAGE].hits == 1


@pytest.mark.parametrize("name", EXPECTATIONS)
@pytest.mark.parametrize("seed", SEEDS[:2])
def test_what_else_may_be_expected(name: str, seed: int) -> None:
    counts = verify.ask_one(Task("verify", f"expected/{name}", seed))
    assert all(count.hits == count.of == 1 for count in counts.values())


@pytest.mark.parametrize("seed", [121, 139])
def test_nearly_equal_rewards_in_float32_agree(seed: int) -> None:
    """Rewards of 0.98 to 0.99 whose std is 0.005: float32 leaves 1e-5 of the scale."""
    counts = verify.ask_one(Task("verify", "right/simulated", seed))
    assert counts[verify.FALSE].hits == 0


def case_of(change) -> Case:
    """A record whose gradients are ours, changed: [R, T] lists of a response's own."""
    made = record(3, [6, 9, 4], [1.0, 0.0, 0.4], hyperparameters={"beta": 0.04})
    ours = evaluate(made, "grpo").breakdown
    rows = np.split(ours.gradient, ours.batch.responses.starts[1:])
    wrong = read_of(made | {"expected": {"gradient": [change(*one) for one in enumerate(rows)]}})
    return Case.of(wrong, plan("grpo"), Tolerance())


def may_be(case: Case) -> list[bool]:
    return [case.other_weights, case.other_advantages, case.other_kl_weights]


def read_of(value):
    return read(Raw(value, "data.jsonl", 1, "", 0))


def test_what_no_number_of_a_response_gives_is_not_looked_for_among_those() -> None:
    """Weights make multiples of our gradient, whatever they are; noise at the tokens is none."""
    weighed = case_of(lambda at, row: ((at - 0.3) * row).tolist())
    assert weighed.other_weights
    random = np.random.default_rng(1)
    noisy = case_of(lambda _, row: (row * random.uniform(0.5, 1.5, len(row))).tolist())
    assert may_be(noisy) == [False, False, False]
    near = case_of(lambda _, row: (row * (1 + 1e-5 * random.normal(size=len(row)))).tolist())
    assert may_be(near) == [True, True, True]


def test_other_advantages_may_be_what_their_two_signs_add_up_to() -> None:
    case = case_of(lambda _, row: row.tolist())
    again = case.with_advantages(np.array([-0.7, 2.0, 0.1]))
    rows = np.split(again.gradient, again.batch.responses.starts[1:])
    assert case_of(lambda at, _: rows[at].tolist()).other_advantages
    assert not case_of(lambda at, _: rows[at].tolist()).other_kl_weights
