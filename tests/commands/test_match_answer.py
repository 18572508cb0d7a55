"""What is listed of what was found, and what an answer is worth."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from files import each
from matched import CHUNKS, evaluator_of, objective_of

from grpo_cli.commands.match.ask import convention
from grpo_cli.commands.match.candidate import Candidate, Families, distinguishing
from grpo_cli.commands.match.fit import FLOAT32, Factor
from grpo_cli.commands.match.question import InMemory, LoggedNumber, Question
from grpo_cli.commands.match.search import (
    SearchResult,
    UnmodifiedRows,
    all_agree,
    evaluate,
    without_chance,
)
from grpo_cli.commands.match.sums.exact import Exact, unbound
from grpo_cli.engine import probe
from grpo_cli.variants.plan import plan


def test_a_match_as_it_is_told() -> None:
    """The factor with its meaning, the sign apart; chance where there is one."""
    chance = Candidate(plan("grpo"), Factor(-0.25, 3.0, "÷ 4 (steps)"), 5.5, 1.0, 0.125)
    chance.totals, chance.value, chance.difference = Exact("input"), -0.5, 0.01
    chance.members, chance.rows = ["b", "a", "b"], ["grpo"]
    chance.needs, chance.unbound = {"beta": 0.5}, {"epsilon_high": 0.25}
    for name, flipped in (("loss", "objective"), ("objective", "loss")):
        found = convention(
            chance, CHUNKS[0], ["x.jsonl"], LoggedNumber.parse(name, "0.5")
        ).document()
        assert found.pop("command").endswith(
            f"""--only {flipped} | awk '{{printf "%.17g\\n", $1 / 4}}'"""
        )
        del found["signature"]
        assert found == {
            "value": -0.5,
            "difference": 0.01,
            "variants": ["grpo"],
            "factor": 0.25,
            "factor_meaning": "÷ 4 (steps)",
            "sign_flipped": True,
            "same": ["b", "a"],
            "bits": 5.5,
            "hits_expected": 0.125,
            "would_need": {"beta": 0.5},
            "any_from": {"epsilon_high": 0.25},
        }
    plain = Candidate(plan("grpo"), Factor(1.0))
    plain.totals = Exact("input")
    found = convention(plain, CHUNKS[0], ["x.jsonl"], LoggedNumber.parse("loss", "0.5")).document()
    assert found["command"].endswith("--only loss")
    told = ("factor", "factor_meaning", "sign_flipped", "hits_expected")
    assert [found[name] for name in told] == [1.0, None, False, None]


def test_digits_that_differ_are_left_out_beside_a_sure_convention() -> None:
    """Where chance gives them: within half a unit, or 1e-12 of what they are made of, they stay."""
    target = LoggedNumber.parse("loss", "0.500")

    def one(chance: float, off: float, size: float = 0.0) -> Any:
        return SimpleNamespace(chance=chance, difference=off, value=0.5 + off, size=size)

    sure, far, near = one(0.009, 0.002), one(1.1, 0.00051), one(1.1, 0.0005)
    rare, made = one(1.0, 0.1), one(1.1, 0.00051, 2e7)
    assert without_chance([sure, far, near, rare, made], target) == [sure, near, rare, made]
    unsure = one(0.01, 0.002)
    assert without_chance([unsure, far], target) == [unsure, far]
    assert without_chance([], target) == []


@each(
    ("chance", "by_chance", "reproduced"),
    [
        (0.0, False, True),
        (0.0099, False, True),
        (0.01, True, True),
        (0.299, True, True),
        (0.3, True, False),
        (math.nan, True, False),
    ],
)
def test_an_answer_is_worth_what_chance_leaves(chance, by_chance, reproduced) -> None:
    one: Any = SimpleNamespace(chance=chance)
    for count in (1, 2):
        found = SearchResult([one] * count, [], 0.0, [], {}, 1, UnmodifiedRows(1, None, None))
        assert (found.by_chance, found.sure, found.reproduced) == (
            by_chance,
            not by_chance,
            reproduced,
        )
    none = SearchResult([], [], 0.0, [], {}, 1, UnmodifiedRows(1, None, None))
    assert not any((none.by_chance, none.sure, none.reproduced))


@each(
    ("name", "text", "times", "value", "agrees"),
    [
        ("kl", "0.250", 1.0, 0.2505, True),
        ("kl", "0.250", 1.0, 0.2506, False),
        ("kl", "0.250", 2.0, 0.125, False),
        ("gradient_norm", "0.250", -2.0, 0.1252, True),
        ("gradient_norm", "0.250", -2.0, 0.25, True),
        ("gradient_norm", "0.250", 2.0, 0.126, False),
        ("gradient_norm", "0.250", 2.0, 0.5, False),
        ("kl", "1000.0000000", 1.0, 1000.0 + 0.9 * 8e3 * FLOAT32, True),
        ("kl", "1000.0000000", 1.0, 1000.0 + 1.1 * 8e3 * FLOAT32, False),
        ("kl", "0.250", 1.0, None, False),
    ],
)
def test_what_was_logged_beside_a_number_agrees(name, text, times, value, agrees) -> None:
    """Within its digits and eight float32 roundings; a gradient as it is or scaled as the loss."""
    one: Any = SimpleNamespace(totals=SimpleNamespace(row=lambda: {name: value}), times=times)
    fits = LoggedNumber.parse("kl" if name == "gradient_norm" else "gradient_norm", "1.0")
    for others, wanted in (([LoggedNumber.parse(name, text)], agrees), ([], True), ([fits], False)):
        question: Any = SimpleNamespace(others=others)
        assert all_agree(one, question) is wanted


@pytest.mark.parametrize("of", ["loss", "objective"])
def test_candidates_get_what_eval_gives(of) -> None:
    """Times their factor; those that cannot be evaluated are left out."""
    made = [
        Candidate(plan("grpo"), Factor(-2.0)),
        Candidate(plan("grpo", stages={"aggregate": "token-sum-norm"}), Factor(1.0)),
        Candidate(plan("dapo"), Factor(0.25)),
    ]
    question = Question(LoggedNumber.parse(of, "0.5"), InMemory(CHUNKS), CHUNKS[0])
    kept = evaluate(question, {}, made)
    assert kept == [made[0], made[2]]
    sign = -1.0 if of == "loss" else 1.0
    for one in kept:
        value = one.times * sign * (objective_of(one.plan) or 0.0)
        assert one.value == pytest.approx(value, rel=1e-13)
        assert one.difference == one.value - 0.5
        assert one.totals is not None
        assert one.totals.records == 2
    moved = [evaluator_of("grpo", one) for one in CHUNKS]
    low = max(1.0 - float(one.ratio[one.advantage < 0].min()) for one in moved)
    high = max(float(one.ratio[one.advantage > 0].max()) - 1.0 for one in moved)
    edges = {"epsilon_low": low, "epsilon_high": high}
    assert low < 0.2 < high
    for one, wanted in zip(
        kept, ({"epsilon_low": low}, {k: v for k, v in edges.items() if v <= 0.2}), strict=True
    ):
        assert one.totals is not None
        assert unbound(CHUNKS[0].objective(one.plan), one.totals.reached) == pytest.approx(wanted)


def test_conventions_under_several_names_are_one() -> None:
    """What differs by its factor alone is another; the rows that are one are listed once."""
    same = {"grpo": ["grpo", "twin"], "dapo": ["dapo"]}
    conventions = Families(CHUNKS[0], same)
    head = Candidate(plan("grpo"), Factor(1.0))
    assert conventions.add(head)
    assert (head.rows, head.bits, head.size) == (["grpo", "twin"], 0.0, 0.0)
    by_eps = Candidate(plan("grpo", hyperparameters={"std_eps": 1e-6}), Factor(1.0))
    assert not conventions.add(by_eps)
    assert len(head.members) == 2 or len(head.members) == 1
    assert not conventions.add(Candidate(plan("grpo"), Factor(1.0)))
    assert head.rows == ["grpo", "twin"]
    half = Candidate(plan("grpo"), Factor(0.5))
    assert conventions.add(half)
    assert half.rows == ["grpo", "twin"]
    swapped = Candidate(plan("grpo", stages={"aggregate": "token-mean"}), Factor(1.0))
    assert conventions.add(swapped)
    assert swapped.rows == []  # it is no row as it stands
    flagged = Candidate(plan("grpo", hyperparameters={"beta": 0.07}), Factor(1.0))
    assert conventions.add(flagged)
    assert flagged.rows == []


def test_what_would_tell_matches_apart() -> None:
    """The first against each of the others of its factor; else whatever the data lack."""
    first = Candidate(plan("grpo", hyperparameters={"beta": 0.0}), Factor(1.0))
    mean = Candidate(
        plan("grpo", stages={"aggregate": "token-mean"}, hyperparameters={"beta": 0.0}), Factor(1.0)
    )
    words = probe.FEATURES
    has = {*words} - {"lengths", "sizes"}
    assert distinguishing([first, mean], CHUNKS[0], has) == [words["lengths"]]
    times = Candidate(mean.plan, Factor(2.0))
    assert distinguishing([first, times], CHUNKS[0], has) == [words["lengths"], words["sizes"]]
    lacking = {*words} - {"lengths", "rollout", "reference", "probable"}
    assert distinguishing([first, times], CHUNKS[0], lacking) == [words["lengths"]]
    many = [first] + [Candidate(first.plan, Factor(1.0))] * 19
    assert distinguishing([*many, mean], CHUNKS[0], has - {"ratios"}) != [words["lengths"]]
    assert distinguishing([*many[:-1], mean], CHUNKS[0], has) == [words["lengths"]]
