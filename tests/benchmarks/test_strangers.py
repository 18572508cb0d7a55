"""The list of strangers' mistakes: its plants are there, and answers are judged as they say."""

from __future__ import annotations

import re
from types import ModuleType

import numpy as np
import pytest
from files import each, some
from trials.product import Answer
from trials.strangers import verifying
from trials.strangers.losses import evaluated
from trials.strangers.mistake import STAGES, Mistake
from trials.strangers.settings import asked
from trials.strangers3.exam import CLEAN, FAULTS, MISTAKES, RUNS

pytestmark = pytest.mark.more


@each("name", some(list(MISTAKES), 16))
def test_mistakes_change_a_loss(name: str) -> None:
    """Each is seen in the value, or where the value does not tell it, in the gradient."""
    random = np.random.default_rng(5)
    mistake = MISTAKES[name]
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
    entries = [*MISTAKES.values(), *FAULTS.values()]
    for one in entries:
        owner, _, number = one.thread.partition("#")
        assert owner.count("/") == 1, one.name
        assert number.isdigit(), one.name
        assert not one.named_by(""), one.name
    assert len(entries) >= 60
    assert len(CLEAN) == 20
    assert 2 * len(RUNS) == 16
    assert all(re.compile(STAGES[one.stage]) for one in MISTAKES.values())
    assert sum(bool(one.wish.recipe or one.wish.hyper) for one in MISTAKES.values()) >= 15


def test_an_answer_is_judged_by_its_first_causes() -> None:
    """By hand: named, misled, silent, and called right; and the stage alone."""
    mistake = Mistake("", "", "case", ModuleType("none"), r"ddof|bessel", stage="advantage")

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
