"""Every mistake that ``verify`` knows, made by definition in plain Python, is named for what it is.

What a cause gives has to be what the definition gives, to 1e-8: else it is not named.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from files import each, some
from mistakes import (
    ENGINE,
    FAR,
    HIGH,
    LENGTHS,
    MOVES,
    NEW,
    RECORD,
    A,
    Outcome,
    causes,
    check,
    clip,
    compute,
    difference,
    subtract,
)

from grpo_cli import evaluate


def test_the_right_numbers_agree() -> None:
    with pytest.raises(AssertionError, match="it agrees"):
        causes(compute())


# ---- advantages ---------------------------------------------------------------------------------

SIGMA = math.sqrt(1.640625)  # of A: its deviations' squares add up to 4.921875
CENTRED = (1.3125, -0.1875, 0.5625, -1.6875)
CHANGED: dict[str, Sequence[float]] = {
    "only negative advantages count: A > 0 is replaced by 0": [0.0, -0.5, 0.0, -2.0],
    "only the sign of the advantages counts": [1.0, -1.0, 1.0, -1.0],
    "advantages shifted by one row: each response has the next one's": (*(-0.5, 0.25, -2.0, 1.0),),
    "each group's advantages in another order: responses have those of others of the group": [
        *(0.25, 1.0, -2.0, -0.5)
    ],
    "advantages centred on their mean": CENTRED,
    "advantages whitened (ddof 0): normalised over the record": [
        x / (math.sqrt(1.23046875) + 1e-8) for x in CENTRED
    ],
    "advantages divided by the std of the record's advantages": [x / (SIGMA + 1e-8) for x in A],
    "advantages weighted by length: A times the number of tokens of the response divided by the "
    "mean number": (*(0.8, -0.2, 0.4, -2.4),),
    "advantages weighted by length: A times the number of tokens of the response": [
        2.0,
        -0.5,
        1.0,
        -6.0,
    ],
    "advantages weighted by length: A divided by the number of tokens of the response": [
        *(0.5, -0.5, 0.0625, -2.0 / 3.0)
    ],
    # with a number that is solved for
    "advantages clipped to ±1.5": [1.0, -0.5, 0.25, -1.5],
    "advantages shifted by a constant: A + 0.3": [1.3, -0.2, 0.55, -1.7],
    "advantages shifted by a constant: A − 0.1234": [0.8766, -0.6234, 0.1266, -2.1234],
}


@pytest.mark.more
@each(("words", "a"), CHANGED.items())
def test_advantages_that_were_changed(words, a) -> None:
    check(words, compute(a=a))


@pytest.mark.more
@each(
    ("a", "believed"),
    [([1.0, -0.5, 0.25, -1.2345], False), ([0.4321, -0.4321, 0.25, -0.4321], True)],
)
def test_a_bound_of_one_response_is_believed_if_it_is_round(a, believed) -> None:
    """Of the two largest either may be the bound; a single one may be anything."""
    found = causes(compute(a=a))
    assert any(words.startswith("advantages clipped") for words in found) is believed


def test_wrong_signs_of_advantages_of_tokens() -> None:
    tokens = [[a] * n for a, n in zip(A, LENGTHS, strict=True)]
    tokens[2][1] = -0.75
    turned = [[-a for a in row] for row in tokens]
    found = difference({"advantages": turned}, advantages=tokens)
    assert found.causes == ("wrong sign of the advantages",)


@pytest.mark.more
@each("gamma", [0.95, 0.9, 1.02, 0.5])
def test_discounts_are_named_by_their_number(gamma) -> None:
    """γ^k, k the tokens behind, or before."""
    behind = [gamma**k for n in LENGTHS for k in range(n - 1, -1, -1)]
    before = [gamma**k for n in LENGTHS for k in range(n)]
    for counts, way in ((behind, "start"), (before, "end")):
        words = f"advantages discounted towards the {way} of each response: A times {gamma} per"
        numbers = compute(counts=counts, beta=0.0)
        check(f"{words} position", numbers, flags={"beta": 0.0})


@each("gamma", [0.3, 0.95, 1.05])
def test_discounts_of_ratios_of_whole_responses(gamma) -> None:
    """The advantage of a token is in the gradients of all tokens of its response."""
    stages, flags = {"ratio": "sequence"}, {"beta": 0.0}
    behind = [[a * gamma**k for k in range(n - 1, -1, -1)] for a, n in zip(A, LENGTHS, strict=True)]
    seen = evaluate(RECORD | {"advantages": behind}, stages=stages, beta=0.0, epsilon=9.0)
    expected = {"objective": seen.objective, "gradient": seen.gradient}
    flags |= {"epsilon_low": 9.0, "epsilon_high": 9.0}
    found = difference(expected, stages=stages, flags=flags, rtol=1e-6)
    words = f"advantages discounted towards the start of each response: A times {gamma} per"
    assert found.causes == (f"{words} position",)


# ---- rewards ------------------------------------------------------------------------------------

REWARDS = [1.0, 0.2, 0.6, 0.1, 0.9, 0.4, 0.4]
GROUPS = [[0, 1, 2, 3], [4, 5, 6]]


def standardise(
    eps: float, rewards: Sequence[float] = REWARDS, *, scaled: bool = True
) -> list[float]:
    """(r − mean)/(std + ε) of the group."""
    found = []
    for group in GROUPS:
        own = [rewards[at] for at in group]
        scale = statistics.stdev(own) + eps if scaled else 1.0
        found += [(reward - statistics.fmean(own)) / scale for reward in own]
    return found


def rewarded(advantages: list[float], rewards: Sequence[float] = REWARDS, **more: Any) -> list[str]:
    rows = [[-0.5, -0.7]] * 7
    columns: dict[str, Any] = {"log_probs_new": rows, "log_probs_old": rows, "log_probs_ref": rows}
    columns |= {"log_probs_rollout": None, "advantages": None, "rewards": [*rewards]}
    columns["groups"] = [0, 0, 0, 0, 1, 1, 1]
    return [*difference({"advantages": advantages}, **columns, **more).causes]


@each(
    ("stages", "flags", "scaled", "words"),
    [
        ({}, {"std_ddof": 0}, True, "ddof 1 instead of 0 (-p std_ddof=1)"),
        ({"advantage": "group-mean"}, {}, True, "divided by the group's std (ddof 1)"),
        (
            *({"advantage": "leave-one-out"}, {}, False),
            "group-mean: advantages not divided by the std",
        ),
    ],
)
def test_formulas_are_named_by_how_they_differ_from_the_rows(stages, flags, scaled, words) -> None:
    found = rewarded(standardise(1e-8, scaled=scaled), stages=stages, flags=flags)
    assert found[0] == words


@each("eps", some([0.0, 1e-6, 1e-5, 1e-4], 2))
def test_an_eps_is_named_by_its_number(eps) -> None:
    """Rewards that hardly differ: no other ε gives the advantages."""
    values = [0.5, 0.5002, 0.5001, 0.4999, 0.7, 0.7001, 0.6998]
    a = standardise(eps, values)
    found = rewarded(a, values, flags={"std_eps": 1e-3}, rtol=1e-7)
    assert found == [f"std_eps {eps:g} instead of 0.001 (-p std_eps={eps:g})"]


# ---- clips, ratios, weights of CISPO ------------------------------------------------------------


def _linear(ratio: float, a: float) -> Outcome:
    value, slope = clip(math.log(ratio), a)
    return value, a if slope == value else 0.0


CLIPS: dict[str, Callable[[float, float], Outcome]] = {
    "epsilon_high used on both sides": lambda r, a: clip(r, a, 0.7, 1.3),
    "upper bound 1/(1 − ε_low) instead of 1 + ε_high": lambda r, a: clip(r, a, 0.8, 1.25),
    "clipped tokens left out: they add nothing to the value": lambda r, a: (clip(r, a)[1],) * 2,
    "min before the advantage: min(ρ, clip(ρ))·A instead of min(ρ·A, clip(ρ)·A)": lambda r, a: (
        (r * a, r * a) if r <= 1 + HIGH else ((1 + HIGH) * a, 0.0)
    ),
    "log ratio instead of the ratio: no exp": _linear,
}


@each(("words", "form"), CLIPS.items())
def test_wrong_clips(words, form) -> None:
    check(words, compute(lambda m, a, _: form(math.exp(m), a)))


@each(
    ("flags", "words", "cap"),
    [
        ({}, "dual clip 3 added", 3.0),
        ({"dual_clip": 3.0}, "dual clip missing", math.inf),
        ({"dual_clip": 1.5}, "dual clip 3 added", 3.0),
        ({"delta": 1.7}, "delta missing", math.inf),
    ],
)
def test_caps_that_are_missing_or_too_many(flags, words, cap) -> None:
    """ρ = 4 and 2 with A = −2: 3·A in the place of ρ·A, or 1.7·A, or no cap at all."""
    moves = [*MOVES[:3], [math.log(4.0), math.log(2.0), -0.05]]

    def policy(m: float, a: float, _: float) -> Outcome:
        ratio = math.exp(m)
        return (cap * a, 0.0) if a < 0 and ratio > cap else clip(ratio, a)

    check(words, compute(policy, moves=moves), log_probs_old=subtract(NEW, moves), flags=flags)


@each(
    ("low", "high", "words"),
    [
        (0.2, 0.27, "epsilon_high 0.27 instead of 0.3 (-p epsilon_high=0.27)"),
        (0.2, 0.45, "epsilon_high 0.45 instead of 0.3 (-p epsilon_high=0.45)"),
        (0.1, 0.3, "epsilon_low 0.1 instead of 0.2 (-p epsilon_low=0.1)"),
        (
            0.3,
            0.45,
            "epsilon_low 0.3 instead of 0.2 (-p epsilon_low=0.3), "
            "epsilon_high 0.45 instead of 0.3 (-p epsilon_high=0.45)",
        ),
        (
            0.25,
            0.25,
            "epsilon_low 0.25 instead of 0.2 (-p epsilon_low=0.25), "
            "epsilon_high 0.25 instead of 0.3 (-p epsilon_high=0.25)",
        ),
    ],
)
def test_another_epsilon_is_named_by_its_number(low, high, words) -> None:
    """Either, both the same, or both in proportion."""
    check(words, compute(lambda m, a, _: clip(math.exp(m), a, 1 - low, 1 + high)))


@each(
    ("own", "wrong", "words"),
    [
        ((0.0, 0.3), (0.0, 0.1), "epsilon_high 0.1 instead of 0.3 (-p epsilon_high=0.1)"),
        ((0.2, 0.0), (0.1, 0.0), "epsilon_low 0.1 instead of 0.2 (-p epsilon_low=0.1)"),
    ],
)
def test_an_epsilon_of_0_is_a_number_too(own, wrong, words) -> None:
    low, high = wrong
    numbers = compute(lambda m, a, _: clip(math.exp(m), a, 1 - low, 1 + high))
    check(words, numbers, flags=dict(zip(("epsilon_low", "epsilon_high"), own, strict=True)))


def test_an_epsilon_that_no_token_tells_is_an_interval() -> None:
    """Gradients alone: A < 0 loses its gradient at ratio 0.74, and keeps it at 0.95."""
    numbers = compute(lambda m, a, _: clip(math.exp(m), a, low=0.9))
    found = difference({"gradient": numbers[1]}, flags={"epsilon_low": 0.7})
    words = "epsilon_low 0.1 (any value from 0.0488 to 0.393 fits) instead of 0.7"
    assert f"{words} (-p epsilon_low=0.1)" in found.causes


def test_log_probs_of_another_base() -> None:
    """2^d for e^d, whose slope is ln 2."""

    def policy(m: float, a: float, _: float) -> Outcome:
        value, slope = clip(2.0**m, a)
        return value, math.log(2.0) * slope

    check(
        "log-probs in base 2 (2^x instead of e^x): multiply them by ln 2, only in the ratio",
        compute(policy),
    )


def test_columns_that_were_shifted_or_scaled() -> None:
    """The old log-probs: each token has that of the one before; all are at another temperature."""
    old = RECORD["log_probs_old"]
    late = [row[:1] + row[:-1] for row in old]
    words = (
        "the old log-probs are shifted by one token: each token has the value of the previous one"
    )
    check(words, compute(moves=subtract(NEW, late)))
    hot = [[x / 0.8 for x in row] for row in old]
    words = (
        "the old log-probs are scaled by 1.25: they have another temperature than the other columns"
    )
    check(words, compute(moves=subtract(NEW, hot)), rtol=1e-6)


INVERTED = "ratio inverted: π_old/π_θ instead of π_θ/π_old"


def _inverted(m: float, a: float, _: float) -> Outcome:
    value, slope = clip(math.exp(-m), a)
    return value, -slope


REFERENCE = "ratio to the reference instead of π_old (ref for old)"
RATIOS = {
    REFERENCE: compute(moves=FAR),
    "ratio to the rollout engine's log-probs instead of π_old": compute(moves=ENGINE),
    INVERTED: compute(_inverted),
    "the ratio twice: a weight of π_θ/π_old, token by token": compute(
        lambda m, a, _: tuple(math.exp(m) * x for x in clip(math.exp(m), a))  # type: ignore[arg-type,return-value]
    ),
}


@each(("words", "numbers"), RATIOS.items())
def test_wrong_ratios(words, numbers) -> None:
    check(words, numbers)


def test_wrong_ratios_of_whole_responses_and_of_given_ones() -> None:
    check(f"{REFERENCE}, token by token", RATIOS[REFERENCE], stages={"ratio": "sequence"})
    bare = dict.fromkeys([name for name in RECORD if name.startswith("log_probs")])
    given = {"ratios": [[math.exp(m) for m in row] for row in MOVES], "flags": {"beta": None}}
    stages = {"aggregate": "response-mean"}
    check(INVERTED, compute(_inverted, beta=0.0), "dapo", stages=stages, **bare, **given)


def cispo(cap: float, m: float, a: float, new: float, *, moving: bool = False) -> Outcome:
    """min(ρ, cap)·A·log π_θ, whose weight is a constant, or is not."""
    weight = min(math.exp(m), cap)
    through = weight * a * new if moving and math.exp(m) <= cap else 0.0
    return weight * a * new, weight * a + through


@pytest.mark.more
@each(
    ("variant", "epsilon", "own", "other", "words"),
    [
        ("cispo", 0.3, 1.3, 0.3, "bound at ε_high = 0.3"),
        ("trl/cispo", 1.1, 1.1, 2.1, "bound at 1 + ε_high = 2.1"),
        ("cispo", 0.0, 1.0, 0.0, "bound at ε_high = 0"),
    ],
)
def test_wrong_weights_of_cispo(variant, epsilon, own, other, words) -> None:
    stages = {"kl": "k3", "aggregate": "response-mean"}
    flags = {"epsilon_low": None, "epsilon_high": epsilon, "kl_weight": "none"}
    moving = "stop-gradient on the weight missing: a gradient flows through the ratio as well"
    wrong = {
        "bound missing: the weight is not clipped": compute(lambda *at: cispo(math.inf, *at)),
        words: compute(lambda *at: cispo(other, *at)),
        moving: compute(lambda *at: cispo(own, *at, moving=True)),
        "ratio instead of the weight times the log-prob (ρ·A)": compute(
            lambda m, a, _: (math.exp(m) * a, math.exp(m) * a)
        ),
    }
    for said, numbers in wrong.items():
        check(said, numbers, variant, stages=stages, flags=flags)
