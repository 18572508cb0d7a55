"""The experiment itself: its simulator, that what it plants is there, and what it counts."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from files import each, some
from trials import tape, verify
from trials.product import Answer, lines, printed_value
from trials.report import missed
from trials.score import Count, Task, merged, wilson
from trials.strangers import checking, verifying
from trials.strangers.losses import evaluated
from trials.strangers.mistake import STAGES, row
from trials.strangers.mistake import Mistake as Unread
from trials.strangers.settings import asked
from trials.strangers.world import Spec, drawn
from trials.strangers3.exam import CLEAN, FAULTS, RUNS
from trials.strangers3.exam import MISTAKES as UNREAD
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


# ---- the list that is not read -------------------------------------------------------------------


@each("name", some(list(UNREAD), 16))
def test_mistakes_change_a_loss(name: str) -> None:
    """Each is seen in the value, or where the value does not tell it, in the gradient."""
    random = np.random.default_rng(5)
    mistake = UNREAD[name]
    strength = mistake.strengths[-1] if mistake.strengths else None
    for _ in range(20):
        one = asked(random, mistake.wish)[0]
        right = evaluated(one.case)
        wrong = evaluated(mistake.planted(one.case, strength))
        if abs(wrong[0] - right[0]) > 1e-9:
            return
        if not mistake.value and np.abs(wrong[1] - right[1]).max() > 1e-12:
            return
    pytest.fail("never seen")


def test_every_entry_has_its_thread_and_can_be_named() -> None:
    """Every pattern compiles, and finds no empty answer."""
    entries = [*UNREAD.values(), *FAULTS.values()]
    for one in entries:
        owner, _, number = one.thread.partition("#")
        assert owner.count("/") == 1, one.name
        assert number.isdigit(), one.name
        assert not one.named_by(""), one.name
    assert len(entries) >= 60
    assert len(CLEAN) == 20
    assert 2 * len(RUNS) == 16
    assert all(re.compile(STAGES[one.stage]) for one in UNREAD.values())
    assert sum(bool(one.wish.recipe or one.wish.hyper) for one in UNREAD.values()) >= 15


def test_an_answer_is_judged_by_its_first_causes() -> None:
    """By hand: named, misled, silent, and called right; and the stage alone."""
    mistake = Unread("", "", "case", ModuleType("none"), r"ddof|bessel", stage="advantage")

    def answer(*causes: str) -> Answer:
        first = {"cause": causes[0] if causes else None, "causes": list(causes)}
        return Answer(1, {"records": [{"agrees": False, "first": first}]}, "")

    def verdict(*causes: str) -> str:
        return verifying.judged(answer(*causes), mistake)[0]

    assert verdict("your std uses ddof 0; this row uses 1") == "named"
    assert verdict("the mask is ignored") == "misled"
    assert verdict("off by a constant factor: yours is the computed one times 3") == "silent"
    assert verdict() == "silent"
    assert verifying.judged(Answer(0, {}, ""), mistake)[0] == "agrees"
    assert verifying.placed(answer("another baseline"), mistake)
    assert not verifying.placed(answer("the mask is ignored"), mistake)
