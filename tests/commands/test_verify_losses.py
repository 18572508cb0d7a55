"""A wrong ε or β, where only losses are recorded: one value has to give all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from files import each

from grpo_cli import evaluate, match, verify

OWN = {"epsilon_low": 0.2, "epsilon_high": 0.2, "beta": 0.04}
WRONG: list[tuple[dict[str, float], str]] = [
    ({"epsilon_low": 0.28}, "epsilon_low 0.28 instead of 0.2"),
    ({"epsilon_high": 0.28}, "epsilon_high 0.28 instead of 0.2"),
    ({"epsilon_low": 0.225}, "epsilon_low 0.225 instead of 0.2"),
    ({"epsilon_low": 0.3, "epsilon_high": 0.3}, "ε is 0.3 instead of 0.2"),
    (
        {"epsilon_low": 0.1, "epsilon_high": 0.35},
        "epsilon_low 0.1 instead of 0.2, epsilon_high 0.35 instead of 0.2",
    ),
    ({"beta": 0.015}, "β is 0.015 instead of 0.04"),
]


def record(random: np.random.Generator) -> dict[str, Any]:
    """Six responses with ratios far beyond both bounds."""
    old = [random.uniform(-3, -0.1, length) for length in random.integers(5, 30, 6)]
    new = [np.minimum(row + random.normal(0, 0.3, len(row)), -1e-3) for row in old]
    ref = [np.minimum(row + random.normal(0, 0.2, len(row)), -1e-3) for row in old]
    columns = {"log_probs_new": new, "log_probs_old": old, "log_probs_ref": ref}
    return {
        **{name: [row.tolist() for row in rows] for name, rows in columns.items()},
        "rewards": (random.integers(0, 4, 6) + 0.03 * np.arange(6)).tolist(),
        "hyperparameters": OWN,
    }


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    random = np.random.default_rng(3)
    return [record(random) for _ in range(4)]


def loss_of(records: Any, wrong: dict[str, float], digits: int = 17) -> float:
    """The loss with wrong settings, as a log has it."""
    several = [records] if isinstance(records, dict) else records
    made = [{**one, "hyperparameters": {**OWN, **wrong}} for one in several]
    return float(f"{evaluate(made, 'grpo').loss:.{digits}g}")


@pytest.mark.more
@each(("digits", "wrong", "words"), [(17 if at % 2 else 6, *one) for at, one in enumerate(WRONG)])
def test_one_value_that_gives_all_losses_is_named(records, wrong, words, digits) -> None:
    made = [{**one, "expected": {"loss": loss_of(one, wrong, digits)}} for one in records]
    answer = verify(made, "grpo")
    assert answer.causes == (words,)
    assert answer.explained == answer.differing >= 3


FORMULAS = [
    ("the rewards are not centred (no baseline)", lambda r: r / (r.std(ddof=1) + 1e-4)),
    ("group-mean: advantages not divided by the std", lambda r: r - r.mean()),
    ("ddof 0 instead of 1", lambda r: (r - r.mean()) / (r.std() + 1e-4)),
]


@each(("words", "wrong"), FORMULAS)
def test_another_formula_is_named_where_records_have_advantages(records, words, wrong) -> None:
    """Their own say by which formula they come from the rewards; half of these have median 0."""
    made = []
    for at, one in enumerate(records):
        r = np.array([0, 1, 0, 0, at % 2, 0], float)
        own = {"rewards": r.tolist(), "advantages": (r - r.mean()) / (r.std(ddof=1) + 1e-4)}
        loss = evaluate(one | own | {"advantages": wrong(r)}, "grpo").loss
        made.append(one | own | {"expected": {"loss": loss}})
    answer = verify(made, "grpo")
    assert answer.causes[0] == words
    assert answer.explained == 4


@pytest.mark.more
def test_no_value_is_named_where_each_record_needs_its_own(records) -> None:
    """Any loss is given by some ε_low: without all of them together, it is no cause."""
    epsilons = np.linspace(0.1213, 0.2717, len(records)).tolist()
    made = [
        {**one, "expected": {"loss": loss_of(one, {"epsilon_low": epsilon})}}
        for one, epsilon in zip(records, epsilons, strict=True)
    ]
    answer = verify(made, "grpo")
    assert (answer.causes, answer.explained) == ((), 0)


@pytest.mark.more
@each(("wrong", "words"), [WRONG[0], WRONG[1]])
def test_match_names_a_setting_that_the_records_have_otherwise(records, wrong, words) -> None:
    answer = match(records, loss=loss_of(records, wrong), variant="grpo")
    found = [one.words for one in answer.mistakes] or answer.matches[0].command
    assert words in found or all(f"{name}={value}" in found for name, value in wrong.items())
