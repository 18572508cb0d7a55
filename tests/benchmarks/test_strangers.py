"""The second list: its losses are those of TRL and verl, and its plants are there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
from files import each, some
from trials.product import Answer
from trials.strangers import checking, verifying
from trials.strangers.batches import drawn, expected
from trials.strangers.plain import Case, Recipe, Rows, evaluated
from trials.strangers.section import ask_one, tasks
from trials.strangers2 import checking as checking2
from trials.strangers2 import losses as losses2
from trials.strangers2 import verifying as verifying2
from trials.strangers2.settings import asked
from trials.task import Task

ROLLOUTS = Path(__file__).parents[1] / "data" / "rollouts"
REDUCTIONS = {"grpo": "response", "bnpo": "token", "dr_grpo": "constant"}
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
    ref = padded(record.get("ref_per_token_logps", record["per_token_logps"]))
    rows = Rows(
        new=new,
        old=old,
        ref=ref,
        rollout=old,
        mask=padded(record.get("completion_mask", ones)),
        written=padded(ones),
        rewards=np.zeros(len(ones)),
        given=np.array(record["advantages"]),
        groups=np.zeros(len(ones)),
        finished=np.ones(len(ones), dtype=bool),
    )
    recipe = Recipe(
        "trl",
        REDUCTIONS.get(framework["loss_type"], "items"),
        low=hyper.get("epsilon_low", 0.2),
        high=hyper["epsilon_high"],
        beta=hyper["beta"],
        sequence=framework["importance_sampling_level"] == "sequence",
        weighted_kl=framework["use_bias_correction_kl"],
        length=hyper["max_completion_length"],
        steps=hyper["gradient_accumulation_steps"],
        generation=hyper["steps_per_generation"],
        items=hyper["num_items_in_batch"],
        cispo=framework["loss_type"] == "cispo",
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


@each("record", TRL, ids=lambda record: record["id"])
def test_losses_of_the_later_list_are_what_trl_gave(record: dict) -> None:
    """The same numbers of TRL for the losses that were written anew."""
    case = as_case(record)
    old, said = case.rows, case.recipe
    rows = losses2.Rows(
        new=old.new,
        old=old.old,
        ref=old.ref,
        rollout=old.rollout,
        mask=old.mask,
        written=old.written,
        groups=old.groups,
        trajectories=old.groups,
        turns=old.mask,
        versions=old.mask,
        entropies=old.mask,
        finished=old.finished,
        rewards=old.rewards,
        given=old.given,
    )
    recipe = losses2.Recipe(
        reduction={"constant": "sum"}.get(said.reduction, said.reduction),
        surrogate="cispo" if said.cispo else "clip",
        length=said.length or 1.0,
        items=said.items * said.steps / said.generation,
        **{name: getattr(said, name) for name in ("low", "high", "beta", "sequence", "steps")},
        weighted=said.weighted_kl,
    )
    loss, slopes = losses2.evaluated(losses2.Case(rows, recipe))
    dumped = np.concatenate([np.array(row, float) for row in record["expected"]["loss_gradient"]])
    assert loss == pytest.approx(record["expected"]["loss"], rel=2e-6, abs=1e-8)
    np.testing.assert_allclose(
        slopes[rows.written.astype(bool)], dumped, atol=1e-6 * np.abs(dumped).max()
    )


@each("name", some(list(verifying2.MISTAKES), 8))
def test_mistakes_of_the_later_list_change_a_loss(name: str) -> None:
    """Each is seen in the value or the gradient of some batch."""
    random = np.random.default_rng(5)
    mistake = verifying2.MISTAKES[name]
    strength = mistake.strengths[0] if mistake.strengths else None
    for _ in range(40):
        one = asked(random, mistake.wish)[0]
        right = losses2.evaluated(one.case)
        wrong = losses2.evaluated(mistake.planted(one.case, strength))
        if right[0] != wrong[0] or (right[1] != wrong[1]).any():
            return
    pytest.fail("never seen")


@each("name", some(list(verifying.MISTAKES), 12))
def test_mistakes_change_a_loss(name: str) -> None:
    """Each is seen in some batch, in the value or the gradient; right and wrong agree elsewhere."""
    random = np.random.default_rng(7)
    mistake = verifying.MISTAKES[name]
    strength = mistake.strengths[0] if mistake.strengths else None
    for _ in range(40):
        one = drawn(random, mistake.wish)[0]
        right = expected(one.case, one.record)
        wrong = expected(mistake.planted(one.case, strength), one.record)
        if right != wrong:
            return
    pytest.fail("never seen")


def test_every_entry_has_its_thread_and_can_be_named() -> None:
    """No name of an entry is twice there, and every thread has a number."""
    known = [*verifying.MISTAKES.values(), *checking.FAULTS]
    later = [*verifying2.MISTAKES.values(), *checking2.FAULTS]
    entries = known + later
    assert len(known) >= 60
    assert len(later) >= 60
    assert sum(one.agent for one in later) >= 15
    assert {one.name for one in known}.isdisjoint(one.name for one in later)
    for entry in entries:
        owner, _, number = entry.thread.partition("#")
        assert owner.count("/") == 1, entry.name
        assert number.isdigit(), entry.name


def test_an_answer_is_judged_by_its_first_causes() -> None:
    """By hand: named, misled, silent, and called right."""
    mistake = verifying.MISTAKES["std without Bessel's correction"]

    def verdict(*causes: str) -> str:
        first = {"cause": causes[0] if causes else None, "causes": list(causes)}
        document = {"records": [{"agrees": False, "first": first}]}
        return verifying.judged(Answer(1, document, ""), mistake)[0]

    assert verdict("your std uses ddof 0; this row uses 1") == "named"
    assert verdict("the mask is ignored") == "misled"
    assert verdict("off by a constant factor: yours is grpo's times 3") == "silent"
    assert verdict() == "silent"
    assert verifying.judged(Answer(0, {}, ""), mistake)[0] == "agrees"


def test_questions_are_asked() -> None:
    """One of each kind runs through the command, and the same seed asks the same."""
    names = {task.name for task in tasks(0, 1)}
    for name in (
        "verify/both/sign of the loss/0",
        "verify/right/any",
        "check/fault/old log-probs one token off/0",
        "check/clean/one group",
        "second/verify/both/clip from epsilon up/0",
    ):
        assert name in names
        task = Task("strangers", name, 3)
        assert ask_one(task).keys() == ask_one(replace(task)).keys()
