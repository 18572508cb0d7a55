"""What each wrong implementation gives, token by token, beside definitions in plain Python."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np
import pytest
from files import each

from grpo_cli.commands.verify.causes import advantages, choices, clips, kl
from grpo_cli.commands.verify.causes.case import Case, Cause, round_number
from grpo_cli.commands.verify.causes.search import explains
from grpo_cli.commands.verify.compare import Tolerance
from grpo_cli.records import Raw
from grpo_cli.records import record as read
from grpo_cli.variants.plan import plan

LENGTHS = [2, 1, 4, 3]
A = [1.0, -0.5, 0.25, -2.0]
NEW = [[-1.6, -2.3], [-1.9], [-1.2, -2.7, -1.5, -2.1], [-3.1, -1.4, -1.8]]
MOVES = [[0.1, 0.5], [0.3], [-0.4, 0.26, 0.02, -0.1], [-0.5, 0.6, -0.05]]
"""log π_θ − log π_old; beyond both bounds for either sign of A."""
FAR = [[0.3, -0.2], [0.1], [0.05, -0.6, 0.4, 0.2], [-0.3, 0.15, 0.7]]
"""log π_θ − log π_ref."""
ENGINE = [[0.12, 0.4], [-0.3], [-0.35, 0.3, 0.06, -0.2], [-0.4, 0.3, 0.05]]
"""log π_θ − log μ, the rollout engine's."""
LOW, HIGH, BETA = 0.2, 0.3, 0.05
FLAGS = {"epsilon_low": LOW, "epsilon_high": HIGH, "beta": BETA}
Outcome = tuple[float, float]
"""A token's value and what it is differentiated to, by log π_θ."""


def less(rows: Sequence[Sequence[float]], moves: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[x - y for x, y in zip(*both, strict=True)] for both in zip(rows, moves, strict=True)]


RECORD: dict[str, Any] = {
    "log_probs_new": NEW,
    "log_probs_old": less(NEW, MOVES),
    "log_probs_ref": less(NEW, FAR),
    "log_probs_rollout": less(NEW, ENGINE),
    "advantages": A,
}


def case_of(
    expected: dict[str, Any] | None = None, variant: str = "grpo", *, stages: Any = (), **more: Any
) -> Case:
    flags = {k: v for k, v in (FLAGS | more.pop("flags", {})).items() if v is not None}
    value = RECORD | more | {"expected": expected or {"loss": 9.0}}
    record = read(Raw({k: v for k, v in value.items() if v is not None}, "data.jsonl", 1, "", 0))
    made = plan(variant, stages=dict(stages), hyperparameters=flags)
    return Case.of(record, made, Tolerance())


def right(ratio: float, a: float, low: float = 1 - LOW, high: float = 1 + HIGH) -> Outcome:
    """PPO's clip, by its cases."""
    if a > 0 and ratio > high:
        return high * a, 0.0
    if a < 0 and ratio < low:
        return low * a, 0.0
    return ratio * a, ratio * a


def k3(d: float) -> Outcome:
    return math.exp(-d) - 1 + d, 1 - math.exp(-d)


def told(
    policy: Callable[[float, float, float], Outcome] = lambda m, a, _: right(math.exp(m), a),
    penalty: Callable[[float, float], Outcome] = lambda d, _: k3(d),
    *,
    moves: Sequence[Sequence[float]] = MOVES,
    far: Sequence[Sequence[float]] = FAR,
    a: Sequence[float] = A,
    beta: float = BETA,
    weight: Callable[[int], float] = lambda row: 1 / (4 * LENGTHS[row]),
    counts: Iterable[float] = repeat(1.0),
) -> tuple[float, list[list[float]]]:
    """J and ∂J/∂(log π_θ): policy(log ρ, A, log π_θ) and penalty(d, log ρ) of each token.

    Each counts as often as ``counts`` says, and weighs what its response does.
    """
    parts, slopes, counts = [], [], iter(counts)
    for row, members in enumerate(zip(NEW, moves, far, MOVES, strict=True)):
        slopes.append([])
        for new, m, d, own in zip(*members, strict=True):
            s, ds = policy(m, a[row], new)
            k, dk = penalty(d, own)
            times = next(counts) * weight(row)
            parts.append(times * (s - beta * k))
            slopes[-1].append(times * (ds - beta * dk))
    return math.fsum(parts), slopes


def check(cause: Cause, case: Case, expected: tuple[float, list[list[float]]]) -> None:
    """J and every slope are those; and the record that expects them is explained."""
    again = cause.evaluate(case)
    assert again.record_objective[0] == pytest.approx(expected[0], rel=1e-11, abs=1e-13)
    np.testing.assert_allclose(again.gradient, np.concatenate(expected[1]), rtol=1e-11, atol=1e-13)


def by_words(causes: Iterator[Cause]) -> dict[str, Cause]:
    return {cause.words: cause for cause in causes}


def test_the_right_numbers_are_those_of_the_definitions() -> None:
    check(Cause("", "", lambda case: case.breakdown), case_of(), told())


# ---- advantages ---------------------------------------------------------------------------------

SIGMA = math.sqrt(1.640625)  # of A: its deviations' squares add up to 4.921875
CHANGED: dict[str, list[float]] = {
    "wrong sign of the advantages": [-1.0, 0.5, -0.25, 2.0],
    "sign of the advantages lost: |A| where A is meant": [1.0, 0.5, 0.25, 2.0],
    "only positive advantages count: A < 0 is taken as 0": [1.0, 0.0, 0.25, 0.0],
    "only negative advantages count: A > 0 is taken as 0": [0.0, -0.5, 0.0, -2.0],
    "only the sign of the advantages counts": [1.0, -1.0, 1.0, -1.0],
    "advantages shifted by one row: each response has that of the one before": [
        *(-2.0, 1.0, -0.5, 0.25)
    ],
    "advantages shifted by one row: each response has that of the one after": [
        *(-0.5, 0.25, -2.0, 1.0)
    ],
    "advantages in reverse order of the responses": [-2.0, 0.25, -0.5, 1.0],
    "the first response's advantage is used for all": [1.0] * 4,
    "advantages centred on their median": [1.125, -0.375, 0.375, -1.875],
    "advantages centred on their mean": [1.3125, -0.1875, 0.5625, -1.6875],
    "advantages whitened (ddof 1): normalised over the record": [
        x / (SIGMA + 1e-8) for x in (1.3125, -0.1875, 0.5625, -1.6875)
    ],
    "advantages whitened (ddof 0): normalised over the record": [
        x / (math.sqrt(1.23046875) + 1e-8) for x in (1.3125, -0.1875, 0.5625, -1.6875)
    ],
    "advantages divided by the std of the record's advantages": [x / (SIGMA + 1e-8) for x in A],
    "advantages weighted by length: A times the response's tokens over their mean": [
        *(0.8, -0.2, 0.4, -2.4)
    ],
    "advantages weighted by length: A times the response's tokens": [2.0, -0.5, 1.0, -6.0],
    "advantages weighted by length: A divided by the response's tokens": [
        *(0.5, -0.5, 0.0625, -2.0 / 3.0)
    ],
}


def test_advantages_that_were_changed() -> None:
    case = case_of()
    made = by_words(advantages.changed(case))
    assert made.keys() == CHANGED.keys()
    for words, a in CHANGED.items():
        check(made[words], case, told(a=a))


def test_advantages_that_were_changed_where_there_is_little_of_them() -> None:
    """A single response has no std, empty ones no length to divide by."""
    change = dict(advantages.CHANGES)
    one, none = np.array([3.0]), np.zeros(2)
    for words in CHANGED:
        alone = change[words](one, np.array([2.0]))
        assert np.isnan(alone).all() == ("(ddof 1)" in words or "std of the" in words), words
    assert change["the first response's advantage is used for all"](none[:0], none[:0]).size == 0
    over_mean = next(words for words in CHANGED if words.endswith("over their mean"))
    np.testing.assert_array_equal(change[over_mean](none + 3.0, none + 0.5), [1.5, 1.5])
    divided = next(
        words for words in CHANGED if words.endswith("A divided by the response's tokens")
    )
    np.testing.assert_array_equal(change[divided](none + 3.0, none), [3.0, 3.0])


def test_signs_of_what_has_no_advantage_for_each_response() -> None:
    """Of tokens' own advantages all are turned; of rewards, less their mean, likewise."""
    tokens = [[a] * n for a, n in zip(A, LENGTHS, strict=True)]
    tokens[2][1] = -0.75
    case = case_of(advantages=tokens)
    (turned,) = advantages.other_sign(case)
    again = turned.evaluate(case)
    np.testing.assert_array_equal(again.advantage, -np.concatenate(tokens))
    assert not [*advantages.changed(case)]
    given = case_of(rewards=[1.0, 0.0, 0.0, 0.5])
    assert not [*advantages.other_sign(given)]
    own = {"advantage": "group-mean"}
    case = case_of(advantages=None, rewards=[1.0, 0.0, 0.0, 0.5], stages=own)
    (turned,) = advantages.other_sign(case)
    assert (turned.stage, turned.words) == ("advantage", "wrong sign of the rewards")
    again = turned.evaluate(case).response_advantage
    np.testing.assert_array_equal(again, [-0.625, 0.375, 0.375, -0.125])


# ---- rewards ------------------------------------------------------------------------------------

REWARDS = [1.0, 0.2, 0.6, 0.1, 0.9, 0.4, 0.4]
GROUPS = [[0, 1, 2, 3], [4, 5, 6]]
CENTRES: dict[str, tuple[bool, Callable[[list[float], int], float]]] = {
    "mean": (True, lambda r, _: statistics.fmean(r)),
    "none": (True, lambda r, _: 0.0),
    "median": (True, lambda r, _: statistics.median(r)),
    "others": (True, lambda r, at: (math.fsum(r) - r[at]) / (len(r) - 1)),
    "batch": (False, lambda r, _: statistics.fmean(r)),
}
SCALES: dict[str, tuple[bool, Callable[[list[float]], float]]] = {
    "std 1": (True, statistics.stdev),
    "std 0": (True, statistics.pstdev),
    "var 1": (True, statistics.variance),
    "var 0": (True, statistics.pvariance),
    "batch 1": (False, statistics.stdev),
    "batch 0": (False, statistics.pstdev),
}


def rewarded(variant: str = "grpo", values: Sequence[float] = REWARDS, **more: Any) -> Case:
    rows = [[-0.5, -0.7]] * 7
    made = {"log_probs_new": rows, "log_probs_old": rows, "log_probs_ref": rows}
    made |= {"log_probs_rollout": None, "advantages": None, "rewards": [*values]}
    return case_of(variant=variant, groups=[0, 0, 0, 0, 1, 1, 1], **made, **more)


def judged(centre: str, scale: str, epsilon: float) -> list[float]:
    """(r − centre)/(scale + ε), of the group or of all."""
    found = []
    for group in GROUPS:
        for at, number in enumerate(group):
            own = [REWARDS[one] for one in group]
            grouped, middle = CENTRES[centre]
            off = REWARDS[number] - (middle(own, at) if grouped else middle(REWARDS, number))
            if scale != "1":
                grouped, spread = SCALES[scale]
                off /= spread(own if grouped else REWARDS) + epsilon
            found.append(off)
    return found


FORMULAS = [(centre, scale) for centre in CENTRES for scale in ("1", *SCALES)]


def test_advantages_by_other_formulas() -> None:
    case = rewarded()
    assert [one.tolist() for one in np.split(np.arange(7), [4])] == GROUPS
    assert case.batch.groups.tolist() == [0, 0, 0, 0, 1, 1, 1]
    for centre, scale in FORMULAS:
        for epsilon in (0.0, 1e-4):
            again = advantages.by_formula(case, (centre, scale), epsilon)
            wanted = judged(centre, scale, epsilon)
            np.testing.assert_allclose(again.response_advantage, wanted, rtol=1e-12, atol=1e-15)


def test_statistics_of_a_single_reward() -> None:
    assert advantages.mean_of_others(np.array([3.0])).tolist() == [0.0]
    assert [advantages.std_of(np.array([3.0]), ddof) for ddof in (0, 1)] == [0.0, 0.0]
    for centre in ("mean", "none"):
        alone = advantages.by_formula(rewarded(values=[0.5] * 7), (centre, "std 1"), 0.0)
        assert alone.response_advantage.tolist() == [0.0] * 7


@each(
    ("variant", "flags", "own", "words"),
    [
        ("grpo", {"std_ddof": 1}, ("mean", "std 1"), "ddof 0 where 1 is meant"),
        ("grpo", {"std_ddof": 0}, ("mean", "std 0"), "ddof 1 where 0 is meant"),
        ("dr", {}, ("mean", "1"), "divided by the group's std (ddof 1)"),
        ("rloo", {}, ("others", "1"), "group-mean: advantages not divided by the std"),
    ],
)
def test_formulas_that_are_tried(variant, flags, own, words) -> None:
    """All but its own; those that share its centre or its scale before the others."""
    stages = {} if variant == "grpo" else {"advantage": _ADVANTAGES[variant]}
    case = rewarded(stages=stages, flags=flags)
    made = [*advantages.formulas(case)]
    asked = [cause.evaluate.keywords["pair"] for cause in made]
    assert {*asked} == {*FORMULAS} - {own}
    apart = [(centre != own[0]) + (scale != own[1]) for centre, scale in asked]
    assert apart == sorted(apart)
    assert {cause.evaluate.keywords["epsilon"] for cause in made} == {1e-8}
    assert words in [cause.words for cause in made]
    assert len({cause.words for cause in made}) == len(made)


_ADVANTAGES = {"dr": "group-mean", "rloo": "leave-one-out"}

PAIRS = {
    ("mean", "std 0"): "ddof 0 where 1 is meant",
    ("mean", "1"): "group-mean: advantages not divided by the std",
    ("none", "1"): "the rewards as they are (raw) for advantages",
    ("none", "std 1"): "the rewards are not centred (no baseline)",
    ("median", "std 0"): "centred on the group's median, ddof 0 where 1 is meant",
    ("others", "var 1"): "leave-one-out: centred on the mean of the others, "
    "divided by the variance (std²) for the std",
    ("batch", "batch 1"): "batch-whiten: mean and std of the batch, groups ignored",
    ("mean", "batch 0"): "batch-std: divided by the std of the batch, ddof 0",
}


def test_formulas_are_named() -> None:
    made = {one.evaluate.keywords["pair"]: one.words for one in advantages.formulas(rewarded())}
    assert {pair: made[pair] for pair in PAIRS} == PAIRS


def test_other_numbers_beside_the_std() -> None:
    """Six of them, less its own; nothing without a std; of its own formula too."""
    made = [*advantages.other_eps(rewarded(flags={"std_eps": 1e-6}))]
    asked = {(*one.evaluate.keywords["pair"], one.evaluate.keywords["epsilon"]) for one in made}
    eps = (0.0, 1e-9, 1e-8, 1e-5, 1e-4)
    assert asked == {(*pair, value) for pair in FORMULAS if pair[1] != "1" for value in eps}
    said = [one.words for one in made if one.evaluate.keywords["pair"] == ("mean", "std 1")]
    assert said == [f"std_eps {value:g} where 1e-06 is meant" for value in eps]


@each("epsilon", [0.0, 1e-6, 1e-5, 1e-4])
def test_an_eps_is_named_by_its_number(epsilon) -> None:
    """Rewards that hardly differ: (r − mean)/(std + ε), and no other ε gives it."""
    values = [0.5, 0.5002, 0.5001, 0.4999, 0.7, 0.7001, 0.6998]
    a = []
    for group in GROUPS:
        own = [values[at] for at in group]
        a += [(r - statistics.fmean(own)) / (statistics.stdev(own) + epsilon) for r in own]
    case = rewarded(values=values, expected={"advantages": a}, flags={"std_eps": 1e-3})
    case = replace(case, tolerance=Tolerance(1e-7))
    named = [one.words for one in advantages.other_eps(case) if explains(one, case)]
    assert named == [f"std_eps {epsilon:g} where 0.001 is meant"]


# ---- clips --------------------------------------------------------------------------------------

RATIOS = [0.5, 0.72, 0.78, 0.805, 0.9, 1.0, 1.1, 1.22, 1.27, 1.31, 1.34, 1.5, 3.5]
"""Between and beyond all the bounds below."""


def _greatest(ratio: float, a: float) -> Outcome:
    """The larger of both products: bounded where that loses least."""
    if a > 0:
        return (ratio * a, ratio * a) if ratio >= 1 - LOW else ((1 - LOW) * a, 0.0)
    return (ratio * a, ratio * a) if ratio <= 1 + HIGH else ((1 + HIGH) * a, 0.0)


def _only_bounded(ratio: float, a: float) -> Outcome:
    inside = 1 - LOW <= ratio <= 1 + HIGH
    return (ratio * a, ratio * a) if inside else (min(max(ratio, 0.8), 1.3) * a, 0.0)


def _first_order(ratio: float, a: float, constant: float = 1.0) -> Outcome:
    value, slope = right(constant + math.log(ratio), a)
    return value, a if slope == value else 0.0


THROUGH = "clip straight-through: the value is clipped, the gradient of clipped tokens is not"
CLIPS: dict[str, Callable[[float, float], Outcome]] = {
    "clip missing (unclipped)": lambda r, a: (r * a, r * a),
    "max for min of the clipped and the unclipped product": _greatest,
    "no min: only the clipped product counts, on both sides of A": _only_bounded,
    "lower clip missing": lambda r, a: right(r, a, low=-math.inf),
    "upper clip missing": lambda r, a: right(r, a, high=math.inf),
    "epsilon_low and epsilon_high swapped": lambda r, a: right(r, a, 0.7, 1.2),
    "epsilon_low used on both sides": lambda r, a: right(r, a, 0.8, 1.2),
    "epsilon_high used on both sides": lambda r, a: right(r, a, 0.7, 1.3),
    "lower bound 1/(1 + ε_high) where 1 − ε_low is meant": lambda r, a: right(r, a, 10 / 13, 1.3),
    "upper bound 1/(1 − ε_low) where 1 + ε_high is meant": lambda r, a: right(r, a, 0.8, 1.25),
    "clip in log space: the log-ratio is clipped to −ε_low and ε_high": lambda r, a: right(
        r, a, math.exp(-0.2), math.exp(0.3)
    ),
    THROUGH: lambda r, a: (right(r, a)[0], r * a),
    "clipped tokens left out: they add nothing to the value": lambda r, a: (right(r, a)[1],) * 2,
    "ratio detached (stop-gradient): the policy term has no gradient": lambda r, a: (
        right(r, a)[0],
        0.0,
    ),
    "1 + log ratio for the ratio: no exp": _first_order,
    "log ratio for the ratio: no exp": lambda r, a: _first_order(r, a, 0.0),
}


def test_wrong_clips() -> None:
    assert [words for words, _, _ in clips.CLIPS] == [*CLIPS]
    for words, form, bounds in clips.CLIPS:
        for a in (1.5, -0.5):
            value, slope = form(np.array(RATIOS), np.full(len(RATIOS), a), *bounds(LOW, HIGH))
            wanted = [CLIPS[words](ratio, a) for ratio in RATIOS]
            np.testing.assert_allclose(value, [one for one, _ in wanted], rtol=1e-14, err_msg=words)
            slopes = np.zeros(len(RATIOS)) if slope is None else slope
            np.testing.assert_allclose(slopes, [one for _, one in wanted], rtol=1e-14)
    upper = next(bounds for words, _, bounds in clips.CLIPS if words.startswith("upper bound"))
    assert upper(1.0, HIGH) == (0.0, math.inf)


def test_wrong_clips_in_an_objective() -> None:
    """Beside the KL; and which tokens they call clipped."""
    case = case_of()
    made = by_words(clips.clips(case))
    assert [*made] == [*CLIPS, "dual clip 3 added"]
    for words, form in CLIPS.items():
        check(made[words], case, told(lambda m, a, _, form=form: form(math.exp(m), a)))  # type: ignore[misc]
    again = made["epsilon_low used on both sides"].evaluate(case)
    sides = [0, 1, 1, -1, 1, 0, 0, -1, 1, 0]
    assert again.clip.tolist() == sides


@each(
    ("flags", "said"),
    [
        ({}, {"dual clip 3 added": 3.0}),
        ({"dual_clip": 3.0}, {"dual clip missing": None}),
        ({"dual_clip": 1.5}, {"dual clip 3 added": 3.0, "dual clip missing": None}),
        ({"delta": 1.7}, {"dual clip 3 added": 3.0, "delta missing": None}),
    ],
)
def test_caps_that_are_missing_or_too_many(flags, said) -> None:
    """ρ = 4 and 2 with A = −2: 3·A in the place of ρ·A, or 1.7·A, or no cap at all."""
    moves = [MOVES[0], MOVES[1], MOVES[2], [math.log(4.0), math.log(2.0), -0.05]]
    case = case_of(log_probs_old=less(NEW, moves), flags=flags)
    made = {w: c for w, c in by_words(clips.clips(case)).items() if w not in CLIPS}
    assert made.keys() == said.keys()
    assert ("clip missing (unclipped)" in by_words(clips.clips(case))) == (not flags)
    cap = flags.get("delta", math.inf)
    for words, dual in said.items():

        def policy(m: float, a: float, _: float, dual: Any = dual, words: str = words) -> Outcome:
            ratio = math.exp(m)
            free = math.inf if words == "delta missing" else cap
            top = min(free, dual or math.inf)
            return (top * a, 0.0) if a < 0 and ratio > top else right(ratio, a)

        check(made[words], case, told(policy, moves=moves))


def test_the_log_prob_for_the_ratio() -> None:
    case = case_of()
    (cause,) = clips.reinforce(case)
    check(cause, case, told(lambda _, a, new: (new * a, a)))
    assert set(cause.evaluate(case).clip.tolist()) == {0}


# ---- ratios -------------------------------------------------------------------------------------

ONE = [[0.0] * n for n in LENGTHS]
CLIPPED = CLIPS["ratio detached (stop-gradient): the policy term has no gradient"]
INVERTED = "ratio inverted: π_old/π_θ where π_θ/π_old is meant"
LEVEL = (
    "old log-probs taken from the new ones with their gradient: "
    "the ratio is 1 and no gradient comes through"
)


def _inverted(m: float, a: float, _: float) -> Outcome:
    value, slope = right(math.exp(-m), a)
    return value, -slope


def test_wrong_ratios() -> None:
    case = case_of()
    made = by_words(choices.ratios(case))
    wanted = {
        "ratio taken as 1: old := new": told(moves=ONE),
        "ratio to the reference where π_old is meant (ref for old)": told(moves=FAR),
        "ratio to the rollout engine's log-probs where π_old is meant": told(moves=ENGINE),
        INVERTED: told(_inverted),
        LEVEL: told(lambda _, a, __: (a, 0.0)),
        "ratio detached (stop-gradient): nothing flows through it": told(
            lambda m, a, _: CLIPPED(math.exp(m), a)
        ),
    }
    assert made.keys() == wanted.keys()
    for words, expected in wanted.items():
        check(made[words], case, expected)
    few = by_words(choices.ratios(case_of(log_probs_ref=None, variant="dapo", flags=NO_BETA)))
    assert "ratio to the reference where π_old is meant (ref for old)" not in few


NO_BETA = {"beta": None}
RATIO_ROWS = [[math.exp(m) for m in row] for row in MOVES]


def test_ratios_that_are_given_have_no_log_probs_to_be_exchanged() -> None:
    """Inverted and without a gradient they may be."""
    bare = dict.fromkeys(("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout"))
    given = bare | {"ratios": RATIO_ROWS, "variant": "dapo", "flags": NO_BETA}
    case = case_of(stages={"aggregate": "response-mean"}, **given)
    made = by_words(choices.ratios(case))
    assert len(made) == 3
    check(made[INVERTED], case, told(_inverted, beta=0.0))
    assert not [*clips.reinforce(case)]


def test_wrong_ratios_of_whole_responses() -> None:
    """Of a geometric mean the same are tried, and those of each token."""
    case = case_of(stages={"ratio": "sequence"})
    made = by_words(choices.ratios(case))
    assert len(made) == 9
    words = "ratio to the reference where π_old is meant (ref for old)"
    check(made[f"{words}, token by token"], case, told(moves=FAR))
    again = made[words].evaluate(case)
    means = [math.exp(math.fsum(row) / len(row)) for row in FAR]
    np.testing.assert_allclose(again.ratio, np.repeat(means, LENGTHS), rtol=1e-13)
    turned = made[INVERTED].evaluate(case)
    means = [math.exp(-math.fsum(row) / len(row)) for row in MOVES]
    np.testing.assert_allclose(turned.ratio, np.repeat(means, LENGTHS), rtol=1e-13)


# ---- KL -----------------------------------------------------------------------------------------


def weighted(d: float, m: float, *, value: bool = True, slope: bool = True) -> Outcome:
    """ρ·k, and what of it is differentiated: ρ, k or both."""
    ratio, (k, dk) = math.exp(m), k3(d)
    return ratio * k, (ratio * k if value else 0.0) + (ratio * dk if slope else 0.0)


def _backwards(d: float, _: float) -> Outcome:
    return math.exp(d) - 1 - d, math.exp(d) - 1


TO_OLD = "KL to the old policy where the reference is meant"
REVERSED = "KL direction reversed: log π_ref − log π_θ where log π_θ − log π_ref is meant"
STILL = "KL without gradient (detached)"
PLAIN = {
    "KL missing (β = 0)": told(beta=0.0),
    "β of the wrong sign (−β): the KL is added to the objective": told(beta=-BETA),
    STILL: told(penalty=lambda d, _: (k3(d)[0], 0.0)),
    REVERSED: told(penalty=_backwards),
    TO_OLD: told(far=MOVES),
    "KL weighted by the ratio": told(penalty=weighted),
    "KL weighted by the ratio, and KL's weight detached: no gradient flows through the ratio": told(
        penalty=lambda d, m: weighted(d, m, value=False)
    ),
    "KL estimator k1 where k3 is meant": told(penalty=lambda d, _: (d, 1.0)),
    "KL estimator k2 where k3 is meant": told(penalty=lambda d, _: (d * d / 2, d)),
    "KL estimator abs where k3 is meant": told(penalty=lambda d, _: (abs(d), math.copysign(1, d))),
    "KL estimator k3+ where k3 is meant": told(penalty=lambda d, _: (k3(d)[0], d)),
}
WEIGHTED = {
    "KL missing (β = 0)": told(beta=0.0),
    "β of the wrong sign (−β): the KL is added to the objective": told(
        penalty=weighted, beta=-BETA
    ),
    STILL: told(penalty=lambda d, m: (weighted(d, m)[0], 0.0)),
    "KL without gradient (detached), but for that of its weight": told(
        penalty=lambda d, m: weighted(d, m, slope=False)
    ),
    REVERSED: told(
        penalty=lambda d, m: (
            math.exp(m) * _backwards(d, m)[0],
            math.exp(m) * math.fsum(_backwards(d, m)),
        )
    ),
    TO_OLD: told(penalty=weighted, far=MOVES),
    "KL not weighted by the ratio": told(),
    "KL's weight detached: no gradient flows through the ratio": told(
        penalty=lambda d, m: weighted(d, m, value=False)
    ),
}


@pytest.mark.parametrize(("weight", "wanted"), [("none", PLAIN), ("ratio", WEIGHTED)])
def test_wrong_penalties(weight, wanted) -> None:
    case = case_of(flags={"kl_weight": weight})
    made = by_words(kl.penalties(case))
    neutral = [words for words in made if "/" not in words and "estimator" not in words]
    assert neutral == [words for words in wanted if "estimator" not in words]
    for words, expected in wanted.items():
        check(made[words], case, expected)
    others = {words.split()[2] for words in made if "estimator" in words and "/" not in words}
    assert others == {"k1", "k2", "abs", "k1+", "abs+", "k3+", "square-rollout"}


def test_no_penalty_is_looked_for_where_there_is_none() -> None:
    assert not [*kl.penalties(case_of(flags={"beta": 0.0}))]
    assert not [*kl.penalties(case_of(variant="dapo", flags=NO_BETA))]
    stages = {"kl": "square-rollout", "advantage": "given"}
    without = by_words(kl.penalties(case_of(log_probs_ref=None, stages=stages)))
    assert not {TO_OLD, REVERSED} & without.keys()


@each("beta", [0.1, 0.025, -0.05, 0.0502])
def test_a_strength_is_named_by_its_number(beta) -> None:
    j, slopes = told(beta=beta)
    case = case_of({"loss": -j, "gradient": slopes})
    (cause,) = kl.strength(case)
    assert cause.words == f"β is {beta:.4g} where 0.05 is meant"
    check(cause, case, (j, slopes))


def test_a_strength_that_is_right_is_none() -> None:
    for beta, count in ((0.05 * 1.00009, 0), (0.05 * 1.00011, 1)):
        j, slopes = told(beta=beta)
        assert len([*kl.strength(case_of({"loss": -j, "gradient": slopes}))]) == count
    assert not [*kl.strength(case_of({"loss": 1.0}))]


# ---- CISPO's weight -----------------------------------------------------------------------------


def cispo(cap: float, m: float, a: float, new: float, *, moving: bool = False) -> Outcome:
    """min(ρ, cap)·A·log π_θ, whose weight is a constant, or is not."""
    weight = min(math.exp(m), cap)
    through = weight * a * new if moving and math.exp(m) <= cap else 0.0
    return weight * a * new, weight * a + through


@each(
    ("variant", "epsilon", "own", "other", "words"),
    [
        ("cispo", 0.3, 1.3, 0.3, "bound at ε_high = 0.3"),
        ("trl/cispo", 1.1, 1.1, 2.1, "bound at 1 + ε_high = 2.1"),
    ],
)
def test_wrong_weights(variant, epsilon, own, other, words) -> None:
    flags = {"epsilon_low": None, "epsilon_high": epsilon}
    stages = {"kl": "k3", "aggregate": "response-mean"}
    case = case_of(variant=variant, stages=stages, flags=flags | {"kl_weight": "none"})
    made = by_words(clips.weights(case))
    wanted = {
        "bound missing: the weight is not clipped": told(lambda *at: cispo(math.inf, *at)),
        words: told(lambda *at: cispo(other, *at)),
        "stop-gradient of the weight missing: a gradient flows through the ratio too": told(
            lambda *at: cispo(own, *at, moving=True)
        ),
        "ratio for the weight times the log-prob (ρ·A)": told(
            lambda m, a, _: (math.exp(m) * a, math.exp(m) * a)
        ),
    }
    assert made.keys() == wanted.keys()
    check(Cause("", "", lambda case: case.breakdown), case, told(lambda *at: cispo(own, *at)))
    for said, expected in wanted.items():
        check(made[said], case, expected)
    sides = [int(math.exp(m) > other) for row in MOVES for m in row]
    assert made[words].evaluate(case).clip.tolist() == sides
    assert set(made["ratio for the weight times the log-prob (ρ·A)"].evaluate(case).clip) == {0}
    for cap in (1.4, 1.02):  # among the ratios, and below most of them
        j, slopes = told(lambda *at, cap=cap: cispo(cap, *at))  # type: ignore[misc]
        wrong = case_of(
            {"gradient": slopes, "loss": -j},
            variant, stages=stages, flags=flags | {"kl_weight": "none"},
        )  # fmt: skip
        found = [one.words for one in clips.solved_cap(wrong) if explains(one, wrong)]
        assert found == [f"epsilon_high: the ratio is capped at {cap:g} where {own:g} is meant"]


def test_a_clip_at_1() -> None:
    """An ε of 0 is a number too: the right clip gives what the record gives."""
    for flags in ({"epsilon_low": 0.0}, {"epsilon_high": 0.0}):
        case = case_of(flags=flags)
        again = clips.bounded(case, clips.right, clips.usual_bounds)
        np.testing.assert_allclose(again.gradient, case.breakdown.gradient, rtol=1e-12)
        assert again.clip.tolist() != case_of().breakdown.clip.tolist()


def test_a_weight_that_is_capped_at_1() -> None:
    """An ε_high of 0 is a number too."""
    flags = {"epsilon_low": None, "epsilon_high": 0.0, "kl_weight": "none"}
    stages = {"kl": "k3", "aggregate": "response-mean"}
    case = case_of(variant="cispo", stages=stages, flags=flags)
    made = by_words(clips.weights(case))
    check(made["bound at ε_high = 0"], case, told(lambda *at: cispo(0.0, *at)))
    moving = next(one for words, one in made.items() if words.startswith("stop-gradient"))
    check(moving, case, told(lambda *at: cispo(1.0, *at, moving=True)))
    j, slopes = told(lambda *at: cispo(1.4, *at))
    wrong = case_of({"gradient": slopes, "loss": -j}, "cispo", stages=stages, flags=flags)
    (found,) = clips.solved_cap(wrong)
    assert found.words == "epsilon_high: the ratio is capped at 1.4 where 1 is meant"


def test_no_weight_is_looked_for_where_there_is_none() -> None:
    assert not [*clips.weights(case_of())]
    assert not [*clips.solved_cap(case_of({"gradient": told()[1]}))]


@each(
    ("value", "is_round"),
    [
        (0.25, True),
        (0.251, False),
        (12.0, True),
        (-0.3, True),
        (0.2500249, True),
        (0.2500251, False),
    ],
)
def test_numbers_that_somebody_may_have_typed(value, is_round) -> None:
    assert round_number(value) is is_round
