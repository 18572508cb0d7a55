"""The list of strangers' mistakes: its losses are TRL's, and its plants are there."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import orjson
import pytest
from files import each, some
from trials.product import Answer
from trials.strangers import verifying
from trials.strangers.losses import Case, Recipe, Rows, evaluated
from trials.strangers.mistake import STAGES, Mistake
from trials.strangers.settings import asked
from trials.strangers3.exam import CLEAN, FAULTS, MISTAKES, RUNS

pytestmark = pytest.mark.more

ROLLOUTS = Path(__file__).parents[1] / "data" / "rollouts"
REDUCTIONS = {"grpo": "response", "bnpo": "token", "dr_grpo": "sum"}
TRL = [
    orjson.loads(line)
    for path in sorted(ROLLOUTS.glob("trl-*.jsonl"))
    for line in path.read_bytes().splitlines()
]


def padded(column: list[list[float]]) -> np.ndarray:
    found = np.zeros((len(column), max(map(len, column))))
    for row, values in enumerate(column):
        found[row, : len(values)] = values
    return found


def as_case(record: dict) -> Case:
    """What TRL's trainer held when it computed the loss of a record."""
    hyper, framework = record["hyperparameters"], record["framework"]
    ones = [[1.0] * len(row) for row in record["per_token_logps"]]
    new = padded(record["per_token_logps"])
    old = padded(record.get("old_per_token_logps", record["per_token_logps"]))
    mask = padded(record.get("completion_mask", ones))
    nothing = np.zeros(len(ones))
    rows = Rows(
        new=new,
        old=old,
        ref=padded(record.get("ref_per_token_logps", record["per_token_logps"])),
        rollout=old,
        mask=mask,
        written=padded(ones),
        groups=nothing,
        trajectories=nothing,
        entropies=mask,
        ends=mask,
        rewards=nothing,
        given=np.array(record["advantages"]),
    )
    steps = hyper["gradient_accumulation_steps"]
    recipe = Recipe(
        reduction=REDUCTIONS.get(framework["loss_type"], "items"),
        surrogate="cispo" if framework["loss_type"] == "cispo" else "clip",
        low=hyper.get("epsilon_low", 0.2),
        high=hyper["epsilon_high"],
        beta=hyper["beta"],
        sequence=framework["importance_sampling_level"] == "sequence",
        weighted=framework["use_bias_correction_kl"],
        length=hyper["max_completion_length"] or 1.0,
        steps=steps,
        items=hyper["num_items_in_batch"] * steps / hyper["steps_per_generation"],
    )
    return Case(rows, recipe)


@each("record", TRL, ids=lambda record: record["id"])
def test_losses_are_what_trl_gave(record: dict) -> None:
    """TRL 1.16.0 computed these losses and gradients in float32 (tests/data)."""
    case = as_case(record)
    loss, slopes = evaluated(case)
    dumped = np.concatenate([np.array(row, float) for row in record["expected"]["loss_gradient"]])
    assert loss == pytest.approx(record["expected"]["loss"], rel=2e-6, abs=1e-8)
    np.testing.assert_allclose(
        slopes[case.rows.written.astype(bool)], dumped, atol=1e-6 * np.abs(dumped).max()
    )


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


def test_a_gradient_is_the_slope_of_its_loss() -> None:
    """By central differences, for losses of the list, right and wrong."""
    random = np.random.default_rng(3)
    for mistake in list(MISTAKES.values())[::4]:
        strength = mistake.strengths[0] if mistake.strengths else None
        case = asked(random, replace(mistake.wish, given=True))[0].case
        at = tuple(np.argwhere(case.rows.mask > 0)[7])
        if mistake.value and not case.recipe.scored:
            for one in (case, mistake.planted(case, strength)):
                assert evaluated(one)[1][at] == pytest.approx(_slope(one, at), rel=1e-3, abs=1e-9)


def _slope(case: Case, at: tuple[int, ...]) -> float:
    step = np.zeros_like(case.rows.new)
    step[at] = 1e-6
    ends = [evaluated(case.of(new=case.rows.new + sign * step))[0] for sign in (1.0, -1.0)]
    return (ends[0] - ends[1]) / 2e-6


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
