"""The experiment itself: its reference, its simulator, and that what it plants is there."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import each, some
from trials import tape, verify
from trials.product import lines, printed_value
from trials.report import missed
from trials.score import Count, Task, merged, wilson
from trials.strangers import checking, verifying
from trials.strangers.mistake import row
from trials.strangers.world import Spec, drawn
from trials.strangers3.exam import CLEAN
from trials.tape import Var
from trials.trl import RIGHT, data, evaluate, simulated
from trials.wrong.catalogue import MISTAKES
from trials.wrong.mistake import mistaken

pytestmark = pytest.mark.more

DATA = Path(__file__).parents[1] / "data"


def test_minimum_shares_a_tie_and_a_clamp_passes_at_its_bounds() -> None:
    """As torch.minimum and torch.clamp do (by hand)."""
    x = Var([1.0, 1.2, 1.3])
    tape.least(x * 1.0, tape.clamp(x, 0.8, 1.2)).sum().backward()
    np.testing.assert_allclose(x.slope, [1.0, 1.0, 0.0])


@each("mistake", some(MISTAKES, 14), ids=lambda mistake: mistake.name)
def test_mistakes_change_the_numbers(mistake: verify.Mistake) -> None:
    """Each is seen in some record, and differs from what is right there."""
    random = np.random.default_rng(1)
    records = (simulated(random, rewarded=mistake.rewarded) for _ in range(60))
    found = next(one for record in records if (one := mistaken(mistake, record, random)))
    right = evaluate(data(found), RIGHT)
    flat = np.concatenate([np.array(row) for row in found["expected"]["loss_gradient"]])
    wrong = flat[data(found).kept]
    assert (
        found["expected"]["loss"] != pytest.approx(right[0], rel=1e-4)
        or np.abs(wrong - right[1]).max() > 1e-3 * np.abs(right[1]).max()
    )


@each("spec", [Spec(), Spec(turns=(2, 4)), Spec(temperature=0.7), Spec(update=0.0)])
def test_clean_batches_are_honest(spec: Spec) -> None:
    """Log-probs are at most 0, and the rollout's tokens were drawn from the rollout's policy.

    So the mean of π_old/π_rollout is 1 within 5 standard errors, whatever the noise, temperature
    and turns: the importance weights of a healthy run have mean 1.
    """
    batch = drawn(np.random.default_rng(0), spec)
    written = ~batch.tool
    for values in batch.columns.values():
        assert np.isfinite(values).all()
        assert (values[written] <= 0).all()
    change = batch.columns["log_probs_old"] - batch.columns["log_probs_rollout"]
    weights = np.exp(change[written])
    error = np.std(weights) / math.sqrt(len(weights))
    assert abs(np.mean(weights) - 1.0) < 5.0 * error + 1e-6


@pytest.mark.parametrize(
    ("section", "name"),
    [
        (verify, "verify wrong/ddof 0"),
        (verifying, "strangers third/verify/right/of trl"),
        (checking, "strangers third/check/clean/"),
    ],
)
def test_questions_repeat(section: Any, name: str) -> None:
    name += next(iter(CLEAN)) if name.endswith("/") else ""
    task = Task(*name.split(" ", 1), 7)
    first, again = section.records(task), section.records(task)
    assert lines(first[0]) == lines(again[0])
    assert first[1] == again[1]


def test_printed_value_runs_the_command_and_its_factor() -> None:
    path = str(DATA.parents[1] / "samples" / "dr_grpo.json")
    line = f"grpo eval {path} -v dr --level batch --only objective"
    value = printed_value(line, path)
    halved = printed_value(line + """ | awk '{printf "%.17g\\n", $1 / 2}'""", path)
    assert value == pytest.approx(-0.07492940378800161, abs=1e-15)  # the README's
    assert halved == value / 2


def test_wilson_interval() -> None:
    """Brown, Cai & DasGupta 2001 print [0, 0.2775] for 0 of 10 at 95 %; 5 of 10 by hand."""
    assert wilson(0, 10) == pytest.approx((0.0, 0.27753), abs=1e-4)
    assert wilson(5, 10) == pytest.approx((0.23659, 0.76341), abs=1e-4)
    assert all(wilson(0, of)[0] == 0.0 and wilson(of, of)[1] == 1.0 for of in range(1, 100))


def test_counts_add_up() -> None:
    total = merged([{"a": Count(1, 2)}, {"a": Count(0, 1), "b": Count(3, 3)}])
    assert (total["a"].hits, total["a"].of, total["b"].share) == (1, 3, 1.0)


def test_a_goal_that_is_surely_missed_is_told() -> None:
    """Of 20, 17 may be 90 %; 10 are not. One false hit is too many of none."""
    right, real = verify.RIGHT, row(checking.REAL)
    assert missed({right: Count(17, 20), real: Count(0, 70)}) == []
    assert missed({right: Count(10, 20), real: Count(1, 70)}) == [right, real]
