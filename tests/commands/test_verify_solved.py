"""Mistakes with a number to be solved for: it is named, and its neighbours are not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from files import each
from test_verify_numbers import (
    BETA,
    FAR,
    LENGTHS,
    MOVES,
    NEW,
    RECORD,
    A,
    by_words,
    case_of,
    check,
    less,
    right,
    told,
    weighted,
)

from grpo_cli.commands.verify.causes import (
    advantages,
    choices,
    clips,
    denominators,
    kl,
    tokens,
)
from grpo_cli.commands.verify.causes.case import Case, Cause
from grpo_cli.commands.verify.causes.search import explains, pattern

Wrong = tuple[float, list[list[float]]]


def expecting(wrong: Wrong, **more: Any) -> Case:
    """A record that expects this J and these slopes."""
    return case_of({"objective": wrong[0], "gradient": wrong[1]}, **more)


def named(source: Callable[[Case], Iterator[Cause]], case: Case) -> list[str]:
    return [cause.words for cause in source(case) if explains(cause, case)]


# ---- denominators -------------------------------------------------------------------------------

WIDTHS = [3, 2, 4, 6]
SAID = {"max_completion_length": 7, "num_items_in_batch": 13, "gradient_accumulation_steps": 5}


def wide(rows: Sequence[Sequence[float]], value: float = -1.0) -> list[list[float]]:
    """With masked tokens behind: 15 as written, of which 10 count."""
    return [[*row] + [value] * (n - len(row)) for row, n in zip(rows, WIDTHS, strict=True)]


def masked(wrong: Wrong) -> Case:
    more = {name: wide(RECORD[name]) for name in RECORD if name.startswith("log_probs")}
    more["mask"] = wide([[1] * n for n in LENGTHS], 0)
    return expecting(
        (wrong[0], wide(wrong[1], 0.0)), hyperparameters=SAID, groups=[0, 0, 1, 1], **more
    )


COUNTS: dict[str, float] = {
    "1 (sum over tokens: no denominator)": 1,
    "the number of tokens (token-mean over this micro-batch, its local count)": 10,
    "the number of responses (token-sum: sum over tokens, mean over responses)": 4,
    "responses × max_completion_length (token-sum-norm: a constant length)": 28,
    "responses × the longest response (mean over padded positions, the width)": 24,
    "the tokens as written, masked ones too (the mask is not in the denominator)": 15,
    "num_items_in_batch": 13,
    "max_completion_length alone": 7,
    "the number of groups": 2,
    "1 (sum over tokens: no denominator) × the accumulation steps": 5,
    "the tokens as written, masked ones too (the mask is not in the denominator)"
    " × the accumulation steps": 75,
}
MEANS: dict[str, float] = {
    "the number of responses (response-mean: mean over responses of each one's)": 4,
    "responses − 1 (B − 1)": 3,
    "1 (a sum over responses)": 1,
    "the number of groups": 2,
    "responses − 1 (B − 1) × the accumulation steps": 15,
}
SHAPES: dict[str, tuple[Callable[[int], float], dict[str, float]]] = {
    "": (lambda _: 1.0, COUNTS),
    "its response's tokens × ": (lambda row: 1 / LENGTHS[row], MEANS),
    "its response's tokens as written, masked ones too × ": (lambda row: 1 / WIDTHS[row], MEANS),
    "#": (lambda row: float(LENGTHS[row]), MEANS),
    "##": (lambda row: 1 / math.sqrt(LENGTHS[row]), MEANS),
}


def test_denominators_are_named() -> None:
    """Of what is counted, its name; a sum where all weigh more than twice what they should."""
    for shape, (of, counts) in SHAPES.items():
        for name, count in counts.items():
            if (shape, count) == ("its response's tokens × ", 4):
                continue  # the right one
            wrong = told(weight=lambda row, of=of, count=count: of(row) / count)  # type: ignore[misc]
            factor = min(of(row) / count * 4 * LENGTHS[row] for row in range(4))
            kind = "a sum where a mean is meant, or another " if factor > 1.999 else "another "
            by = shape.strip("#") + name
            case = masked(wrong)
            meant = f"where {case.breakdown.counted} are meant"
            words = f"{kind}denominator: each token is divided by {by}, {meant}"
            found = by_words(denominators.denominators(case))
            if abs(factor - 2.0) < 1e-9 and words not in found:  # it may be either
                words = words.replace("a sum where a mean is meant, or ", "")
            assert words in found, words
            check(found[words], case, wrong)
            assert words in named(denominators.denominators, case)


def test_denominators_without_a_name() -> None:
    """As numbers, unless only names are asked for."""
    for divisor in (3.7, 0.61):
        wrong = told(weight=lambda row, divisor=divisor: 1 / divisor)  # type: ignore[misc]
        case = masked(wrong)
        words = f"denominator: tokens weigh by the same, over {divisor}, "
        (found,) = denominators.denominators(case)
        assert found.words == f"{words}where {case.breakdown.counted} are meant"
        check(found, case, wrong)
        assert not [*denominators.denominators(case, unnamed=False)]
    wrong = told(weight=lambda row: 1.7 / (4 * LENGTHS[row]))
    (found,) = denominators.denominators(masked(wrong))
    assert found.words == "off by a constant factor: expected is ours times 1.7"
    check(found, masked(wrong), wrong)
    assert not [*denominators.denominators(masked(told()))]
    assert not [*denominators.denominators(masked(told(weight=lambda row: 1 / (row + 2.3))))]
    assert not [*denominators.denominators(case_of({"gradient": lone(2)}))]  # no weights give it
    slopes = [[2.0 * slope for slope in row] for row in told()[1]]
    slopes[2] = [slope + 0.01 * other for slope, other in zip(slopes[2], askew(2), strict=True)]
    assert not [*denominators.denominators(case_of({"gradient": slopes}))]


def askew(row: int) -> list[float]:
    """What has no part along a response's slopes."""
    slopes = np.array(told()[1][row])
    turned = np.array([1.0, -1.0, 1.0, -1.0])
    found: list[float] = (turned - slopes * (turned @ slopes) / (slopes @ slopes)).tolist()
    return found


def test_weights_go_with_lengths_to_some_ten_thousandths() -> None:
    """Of the first response's: the others may lie on either side of it."""
    for off, fits in ((2.9e-4, True), (3.1e-4, False)):
        factors = (1.0, 1 + off, 1 - off, 1 - off)
        wrong = told(weight=lambda row, by=factors: by[row] / 13)  # type: ignore[misc]
        words = [one.words for one in denominators.denominators(masked(wrong))]
        assert any("num_items_in_batch" in one for one in words) is fits


def test_a_count_is_that_to_some_ten_thousandths() -> None:
    case = masked(told())
    for off, near in ((2.9e-4, True), (-2.9e-4, True), (3.1e-4, False), (-3.1e-4, False)):
        names = [name for name, _ in denominators.named_counts(case, "", 13 * (1 + off))]
        assert names == (["num_items_in_batch"] if near else [])
    names = [name for name, _ in denominators.named_counts(case, "", 10.0)]
    assert names == ["the number of tokens (token-mean over this micro-batch, its local count)"]


def test_tokens_of_truncated_responses() -> None:
    """What is repeated at the end is padding; without ids all are counted, as written."""
    ids = [[5, 6, 7, 7, 7], [7, 7, 7], [5, 6], [5], [7, 6, 7, 7], [9, 9]]
    made = SimpleNamespace(token_ids=ids, widths=[5, 3, 2, 1, 4, 2])
    assert [denominators.unpadded_length(made, at) for at in range(6)] == [2, 0, 2, 1, 2, 0]
    made = SimpleNamespace(token_ids=None, widths=[5, 3])
    assert [denominators.unpadded_length(made, at) for at in range(2)] == [5, 3]


def test_truncated_responses_that_count_still() -> None:
    """Two tokens and a masked response of five, two of them padding: divided by 2 + 3."""
    rows = [[-0.5, -0.9], [-0.4] * 5]
    record = {"log_probs_new": rows, "log_probs_old": rows, "log_probs_ref": rows}
    record |= {"mask": [[1, 1], [0] * 5], "token_ids": [[3, 4], [3, 4, 5, 0, 0]]}
    slopes = {"gradient": [[0.2, 0.2], [0.0] * 5]}
    case = case_of(slopes, log_probs_rollout=None, advantages=[1.0, -1.0], **record)
    (words,) = (one for one in named(denominators.denominators, case) if "truncated" in one)
    assert "the tokens with those of responses that are masked whole" in words


def test_a_response_without_tokens_has_no_weight() -> None:
    """Means over two responses with tokens, each over two of the three: B − 1."""
    rows: list[list[float]] = [[-0.5, -0.9], [], [-0.4]]
    made = {"log_probs_new": rows, "log_probs_old": rows, "log_probs_ref": rows}
    expected = {"objective": 0.5 - 1.5, "gradient": [[0.25, 0.25], [], [-1.5]]}
    case = case_of(expected, log_probs_rollout=None, advantages=[1.0, 2.0, -3.0], **made)
    found = named(denominators.denominators, case)
    assert any("divided by its response's tokens × responses − 1 (B − 1)" in one for one in found)


def test_gradients_that_are_0_tell_no_weight() -> None:
    """All advantages 0, without a KL."""
    case = case_of({"gradient": told()[1]}, advantages=[0.0] * 4, flags={"beta": 0.0})
    assert not [*denominators.denominators(case)]


def both(weight: Callable[[int], float], beta: float = 0.05) -> Wrong:
    """The policy as it should be, and the KL with weights of its own."""
    policy, whole, bare = (
        told(beta=0.0),
        told(beta=beta, weight=weight),
        told(beta=0, weight=weight),
    )
    slopes = [
        [x + y - z for x, y, z in zip(*rows, strict=True)]
        for rows in zip(policy[1], whole[1], bare[1], strict=True)
    ]
    return policy[0] + whole[0] - bare[0], slopes


@each(
    ("name", "weight"),
    [
        ("token-mean", lambda _: 0.1),
        ("token-sum", lambda _: 0.25),
        ("response-sum", lambda row: LENGTHS[row] ** -1.0),
    ],
)
def test_a_kl_with_weights_of_its_own(name, weight) -> None:
    """Where those are more than another β that somebody may have typed."""
    words = f"KL aggregated by itself, as {name}, where response-mean is meant"
    wrong = both(weight)
    case = expecting(wrong)
    if name == "response-sum":  # it is the mean times four, and so a β of 0.2
        assert words not in named(kl.reductions, case)
        assert named(kl.strength, case) == ["β is 0.2 where 0.05 is meant"]
        wrong = both(weight, 0.0512345)
        case = expecting(wrong, flags={"beta": 0.0512345})
    assert words in named(kl.reductions, case)
    check(by_words(kl.reductions(case))[words], case, wrong)


def test_a_kl_whose_weights_are_small_and_not_alike_has_weights_of_its_own() -> None:
    """A constant length of 100,000: a fifty-thousandth of ours and less, 2e-5 of it first."""
    more = {"hyperparameters": {"max_completion_length": 100_000}}
    case = expecting(told(), **more)
    found = by_words(kl.reductions(case))
    name = "KL aggregated by itself, as token-sum-norm, where response-mean is meant"
    check(found[name], case, both(lambda _: 1 / 400_000))


@each("empty", [0, 1, 2])
def test_a_kl_with_another_beta_is_that_whatever_responses_without_tokens_weigh(empty) -> None:
    """Two responses of three tokens: 1/6 where 1/9 is meant, and β may be 0.077."""
    rows = [[-1.0, -2.0, -3.0], [-0.5, -1.5, -2.5]]
    rows.insert(empty, [])
    names = ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout")
    flags = {"beta": 0.077 / 1.5}  # half of which nobody would have typed
    case = case_of(advantages=[1.0, -1.0, 0.5], flags=flags, **dict.fromkeys(names, rows))
    name = "KL aggregated by itself, as token-mean, where response-mean is meant"
    with pytest.raises(ValueError, match="may have typed"):
        by_words(kl.reductions(case))[name].evaluate(case)


def test_no_weights_of_a_kl_are_looked_for_without_one() -> None:
    assert not [*kl.reductions(expecting(told(beta=0.0), flags={"beta": 0.0}))]
    assert not [*kl.weights_and_denominators(expecting(told(beta=0.0), flags={"beta": 0.0}))]
    known = [one.words for one in kl.reductions(expecting(told()))]
    assert not any("as token-sum-norm" in one or "as response-mean" in one for one in known)
    more = {"hyperparameters": {"max_completion_length": 64}}
    known = [one.words for one in kl.reductions(expecting(told(), **more))]
    assert any("as token-sum-norm" in one for one in known)


@each(("times", "told_so"), [(1 + 0.9e-4, False), (1 + 1.1e-4, True), (1 - 1.1e-4, True)])
def test_another_beta_is_off_by_more_than_a_ten_thousandth(times, told_so) -> None:
    case = expecting(told(beta=BETA * times))
    assert bool([*kl.strength(case)]) is told_so


def test_a_beta_is_solved_for_where_some_tokens_have_no_kl() -> None:
    far = [[0.0, -0.2], *FAR[1:]]
    case = expecting(told(far=far, beta=0.15), log_probs_ref=less(NEW, far))
    assert named(kl.strength, case) == ["β is 0.15 where 0.05 is meant"]


def test_a_kl_weight_and_a_denominator_at_once() -> None:
    wrong = told(penalty=weighted, weight=lambda _: 0.1)
    case = expecting(wrong)
    words = "KL weighted by the ratio, and another denominator: each token is divided by the number"
    (found,) = (one for one in kl.weights_and_denominators(case) if one.words.startswith(words))
    check(found, case, wrong)
    wrong = told(penalty=weighted, weight=lambda _: 1 / 3.7)  # which has no name
    assert not named(kl.weights_and_denominators, expecting(wrong))


# ---- tokens -------------------------------------------------------------------------------------

LAST, FIRST = [1, 2, 6, 9], [0, 2, 3, 7]
DROPPED, DOUBLED = "dropped (gradient 0)", "doubled"


def counted(at: Sequence[int], times: float) -> list[float]:
    return [times if one in at else 1.0 for one in range(10)]


@each(
    ("where", "at", "times", "said"),
    [
        ("last", LAST, 0.0, DROPPED),
        ("last", LAST, 2.0, DOUBLED),
        ("first", FIRST, 0.0, DROPPED),
        ("first", FIRST, 2.0, DOUBLED),
    ],
)
def test_edges_that_do_not_count_or_count_twice(where, at, times, said) -> None:
    wrong = told(counts=counted(at, times))
    case = expecting(wrong)
    assert named(tokens.edges, case) == [f"the {where} token of every response is {said}"]
    (cause,) = (one for one in tokens.edges(case) if explains(one, case))
    check(cause, case, wrong)


def test_edges_of_responses_without_tokens() -> None:
    rows = [[], [-0.5, -0.3], []]
    made = {"log_probs_new": rows, "log_probs_old": rows, "log_probs_ref": rows}
    case = case_of(log_probs_rollout=None, advantages=[1.0, 2.0, 3.0], **made)
    assert tokens.last(case).tolist() == [False, True]
    assert tokens.first(case).tolist() == [True, False]


@each(
    ("at", "words"),
    [
        ([4], "1 of 10 token is {}: token 1 of response 2"),
        ([6], "1 of 10 token is {}: the last token of response 2"),
        ([4, 8], "2 of 10 tokens are {}: the first is token 1 of response 2"),
        ([2], "response 1 is {}: 1 of 10 tokens"),
        ([3, 4, 5, 6], "response 2 is {}: 4 of 10 tokens"),
        ([0, 1, 7, 8, 9], "responses 0, 3 are {}: 5 of 10 tokens"),
    ],
)
def test_tokens_that_do_not_count_or_count_twice(at, words) -> None:
    for times, said in ((0.0, DROPPED), (2.0, DOUBLED)):
        wrong = told(counts=counted(at, times))
        case = expecting(wrong)
        assert named(tokens.solved_tokens, case) == [words.format(said)]
        (cause,) = tokens.solved_tokens(case)
        check(cause, case, wrong)


def test_responses_that_are_named_are_no_more_than_five() -> None:
    rows = [[-0.5]] * 7
    made = {"log_probs_new": rows, "log_probs_old": rows, "log_probs_ref": rows}
    gradient = [[1 / 7]] + [[0.0]] * 6
    case = case_of({"gradient": gradient}, log_probs_rollout=None, advantages=[1.0] * 7, **made)
    said = [f"responses 1, 2, 3, 4, 5, … are {DROPPED}: 6 of 7 tokens"]
    assert named(tokens.solved_tokens, case) == said
    assert pattern(case).startswith("6 of 7 gradients differ, in responses 1, 2, 3, 4, 5, …, where")
    gradient[1] = [1 / 7]
    case = case_of({"gradient": gradient}, log_probs_rollout=None, advantages=[1.0] * 7, **made)
    said = [f"responses 2, 3, 4, 5, 6 are {DROPPED}: 5 of 7 tokens"]
    assert named(tokens.solved_tokens, case) == said
    assert pattern(case).startswith("5 of 7 gradients differ, in responses 2, 3, 4, 5, 6, where")


CLIPPED = [MOVES[0], [-0.5], MOVES[2], MOVES[3]]
"""All of response 1, its one token; token 1 of response 0, token 0 of response 3."""


@each(
    ("at", "words"),
    [
        ([2], "response 1 is {}: 1 of 10 tokens"),
        ([1], "1 of 10 token is {}: the last token of response 0"),
        ([7], "1 of 10 token is {}: token 0 of response 3"),
    ],
)
def test_what_has_no_gradient_is_seen_in_the_loss(at, words) -> None:
    """Clipped tokens without a KL."""
    for times, said in ((0.0, DROPPED), (2.0, DOUBLED)):
        wrong = told(counts=counted(at, times), moves=CLIPPED, beta=0.0)
        case = expecting(wrong, log_probs_old=less(NEW, CLIPPED), flags={"beta": 0.0})
        assert {*named(tokens.solved_tokens, case)} == {words.format(said)}
        check(next(tokens.solved_tokens(case)), case, wrong)


def test_where_no_token_has_a_gradient_one_is_seen_in_the_loss() -> None:
    """All are clipped: 1.3 of the first response is expected twice, or not at all."""
    rows = [[-1.5], [-1.8]]
    made = {"log_probs_new": rows, "log_probs_old": less(rows, [[0.5], [-0.6]])}
    made |= {"log_probs_ref": None, "log_probs_rollout": None, "advantages": [1.0, -1.0]}
    for times, said in ((0.0, DROPPED), (2.0, DOUBLED)):
        expected = {"objective": (times * 1.3 - 0.8) / 2, "gradient": [[0.0], [0.0]]}
        case = case_of(expected, stages={"kl": "none"}, flags={"beta": None}, **made)
        assert (
            named(tokens.solved_tokens, case)
            == [
                f"response 0 is {said}: 1 of 2 tokens",
            ]
            * 2
        )


def test_what_has_no_gradient_and_the_same_part_may_be_either() -> None:
    rows = [[-0.5, -0.6, -0.7], [-0.8]]
    moves = [[0.5, 0.5, 0.1], [0.0]]
    made = {"log_probs_new": rows, "log_probs_old": less(rows, moves), "log_probs_ref": None}
    parts = [[1.3 / 6, 1.3 / 6, math.exp(0.1) / 6], [-0.5]]
    slopes = [[0.0, 0.0, parts[0][2]], [-0.5]]
    j = math.fsum(parts[0]) + parts[1][0] - 1.3 / 6
    more = {"log_probs_rollout": None, "advantages": [1.0, -1.0], "flags": {"beta": None}}
    stages = {"kl": "none"}
    case = case_of({"objective": j, "gradient": slopes}, stages=stages, **made, **more)
    said = f"1 of 4 token is {DROPPED}: token 0 of response 0"
    assert named(tokens.solved_tokens, case) == [
        f"{said}, or another of the 2 that have no gradient and the same part"
    ]


def test_masked_tokens_that_are_no_log_probs_did_not_count() -> None:
    rows = [[-1.0, 0.5], [-0.5, -0.25]]
    more = {"log_probs_new": rows, "log_probs_old": None, "log_probs_ref": None}
    more |= {"log_probs_rollout": None, "mask": [[1, 0], [1, 1]], "advantages": [1.0, -1.0]}
    case = case_of({"loss": 1.0}, stages={"kl": "none"}, flags={"beta": None}, **more)
    (cause,) = tokens.mask_ignored(case)
    assert not explains(cause, case)
    with pytest.raises(ValueError, match="log_probs"):
        cause.evaluate(case)


def test_masked_tokens_that_count() -> None:
    """They are compared where they count, and evaluated all."""
    mask = [[1, 1], [1], [1, 0, 1, 1], [1, 1, 0]]
    wrong = told()
    case = expecting(wrong, mask=mask)
    assert named(tokens.mask_ignored, case) == ["mask ignored: masked tokens count"]
    (cause,) = tokens.mask_ignored(case)
    check(cause, case, wrong)
    for at, row in ((3, 1), (2, 3)):
        slopes = [[*one] for one in wrong[1]]
        slopes[at][row] *= 1.1
        assert not named(tokens.mask_ignored, expecting((wrong[0], slopes), mask=mask))
    slopes = [[*one] for one in wrong[1]]
    slopes[2][1] = 7.0  # masked
    assert named(tokens.mask_ignored, expecting((wrong[0], slopes), mask=mask))
    assert not [*tokens.mask_ignored(case_of())]
    (words,) = named(tokens.solved_tokens, positioned(mask))
    assert words == "1 of 8 token is dropped (gradient 0): token 2 of response 2"


def positioned(mask: list[list[int]]) -> Case:
    """Without the third token of response 2 as written, the second that counts."""
    case = case_of(mask=mask)
    slopes = iter(case.breakdown.gradient.tolist())
    rows = [[next(slopes) if one else 0.0 for one in row] for row in mask]
    rows[2][2] = 0.0
    return case_of({"gradient": rows}, mask=mask)


# ---- factors ------------------------------------------------------------------------------------


def test_the_negative_is_both() -> None:
    case = case_of()
    (cause,) = denominators.negative(case)
    j, slopes = told()
    check(cause, case, (-j, [[-slope for slope in row] for row in slopes]))
    assert not [*denominators.negative(case_of({"advantages": A}))]


def scaled(loss: float, gradient: float | None = None, **said: Any) -> Case:
    j, slopes = told()
    expected: dict[str, Any] = {"loss": -loss * j}
    if gradient is not None:
        expected["gradient"] = [[gradient * slope for slope in row] for row in slopes]
    return case_of(expected, hyperparameters=said, groups=[0, 0, 0, 1])


SUM = "a sum where a mean is meant, or a mean where a sum is meant: expected is ours"
STEPS = "off by the accumulation factor: expected is ours"


@each(
    ("times", "said", "words"),
    [
        (10.0, {}, [f"{SUM} times the number of tokens = 10"]),
        (0.25, {}, [
            f"{SUM} divided by {of} = 4" for of in ("the number of responses", "the denominator")
        ]),
        (-2.0, {}, [f"{SUM} times the number of groups = 2, and of the wrong sign"]),
        (7.0, {"max_completion_length": 7}, [f"{SUM} times max_completion_length = 7"]),
        (1 / 9, {"response_length": 9}, [f"{SUM} divided by response_length = 9"]),
        (3.0, {"dp_size": 3}, [f"{STEPS} times dp_size = 3"]),
        (-0.2, {"gradient_accumulation_steps": 5}, [
            f"{STEPS} divided by gradient_accumulation_steps = 5, and of the wrong sign"
        ]),
        (8.0, {"steps_per_generation": 8}, [f"{STEPS} times steps_per_generation = 8"]),
        (1 / 6, {"num_processes": 6}, [f"{STEPS} divided by num_processes = 6"]),
        (1.0, {"dp_size": 1}, []),
        (3.001, {"dp_size": 3}, []),
    ],
)  # fmt: skip
def test_factors_with_a_name(times, said, words) -> None:
    """Of a loss alone; of what has a gradient too, only that of accumulation."""
    case = scaled(times, **said)
    assert named(denominators.named_factors, case) == words
    for cause in denominators.named_factors(case):
        j, slopes = told()
        by = round(times) if abs(times) > 1 else 1 / round(1 / times)
        check(cause, case, (by * j, [[by * slope for slope in row] for row in slopes]))
    both = named(denominators.named_factors, scaled(times, times, **said))
    assert both == [one for one in words if one.startswith(STEPS)]


@each(
    ("times", "words"),
    [
        (3.0, ["off by a whole factor: expected is ours times 3"]),
        (-2.0, ["off by a whole factor: expected is ours times -2"]),
        (2.0001, ["off by a whole factor: expected is ours times 2"]),
        (2.001, []),
        (1.5, []),
        (1.0, []),
        (-1.0, []),
    ],
)
def test_whole_factors(times, words) -> None:
    assert [one.words for one in denominators.whole_factor(scaled(times))] == words
    assert not [*denominators.whole_factor(scaled(times, times))]


@each(
    ("loss", "gradient", "count"),
    [
        (2.0, 2.0, 0), (2.0 * (1 - 9e-4), 2.0, 0), (2.0 * (1 + 1.1e-3), 2.0, 1),
        (1.0 + 9e-5, 1.0, 2), (1.0 + 1.1e-4, 1.0, 0), (0.25, 1.0009, 2), (0.25, 1.0011, 3),
        (-1.0, -1.0, 0),
    ],
)  # fmt: skip
def test_from_where_on_factors_are_not_one(loss: float, gradient: float, count: int) -> None:
    """The loss is right to a ten-thousandth, and factors are the same to a thousandth."""
    assert len([*denominators.separate_factors(scaled(loss, gradient))]) == count


@each(
    ("loss", "gradient", "words"),
    [
        (1.0, 1.37, ["only the gradient: it is ours times 1.37, the loss is right"]),
        (2.5, 1.0, ["only the loss as logged: it is ours times 2.5"]),
        (-1.0, 1.0, ["wrong sign of only the loss as logged: it is ours times -1"]),
        (0.5, 2.5, ["off by constant factors: gradient times 2.5, loss 0.5"]),
        (1.2345, 1.0, []),
        (2.0, 2.0, []),
    ],
)
def test_factors_of_the_gradient_or_of_the_loss(loss, gradient, words) -> None:
    case = scaled(loss, gradient)
    assert named(denominators.separate_factors, case)[:1] == words  # the search takes one
    j, slopes = told()
    wrong = loss * j, [[gradient * slope for slope in row] for row in slopes]
    for cause in denominators.separate_factors(case):
        if cause.words in words:
            check(cause, case, wrong)


# ---- advantages ---------------------------------------------------------------------------------


@each(
    ("a", "words"),
    [
        ([0.75, -0.5, 0.25, -0.75], "advantages clipped to ±0.75"),
        ([1.0, -0.5, 0.25, -1.5], "advantages clipped to ±1.5"),
        ([1.3, -0.2, 0.55, -1.7], "advantages shifted by a constant: A + 0.3"),
        ([0.8766, -0.6234, 0.1266, -2.1234], "advantages shifted by a constant: A − 0.1234"),
        ([0.74, -0.185, 0.37, -2.22],
         "advantages weighted by length: A times the response's tokens, times 0.37"),
        ([0.85, -0.85, 0.10625, -1.7 * 2 / 3],
         "advantages weighted by length: A divided by the response's tokens, times 1.7"),
        ([0.25, -0.5, 1.0, -2.0],
         "advantages in another order: 2 of 4 responses have that of another response "
         "(response 0 that of response 2)"),
        ([-0.5, -2.0, 0.25, 1.0],
         "advantages in another order: 3 of 4 responses have that of another response "
         "(response 0 that of response 1)"),
    ],
)  # fmt: skip
def test_advantages_that_were_changed_by_a_number(a, words) -> None:
    wrong = told(a=a)
    case = expecting(wrong)
    assert words in named(advantages.solved_changes, case)
    check(by_words(advantages.solved_changes(case))[words], case, wrong)
    np.testing.assert_allclose(advantages.effective_advantages(case), a, rtol=1e-9)


def test_a_bound_of_one_response_is_believed_if_it_is_round() -> None:
    """Of the two that are longest any may be the bound; a single one may be anything."""
    for a, count in (
        ([1.0, -0.5, 0.25, -1.2345], 0),
        ([0.4321, -0.4321, 0.25, -0.4321], 1),
        ([0.9876, -0.5, 0.25, -0.9876], 1),  # one of the two is little longer than the bound
    ):
        found = named(advantages.solved_changes, expecting(told(a=a)))
        assert sum(words.startswith("advantages clipped") for words in found) == count


def test_a_response_without_tokens_tells_no_advantage() -> None:
    rows = [[-1.0, -2.0], [], [-0.5]]
    made = {"log_probs_new": rows, "log_probs_old": rows, "log_probs_ref": None}
    made |= {"log_probs_rollout": None, "advantages": [1.0, 1.0, -1.0]}
    more = {"stages": {"kl": "none"}, "flags": {"beta": None}, **made}
    own = case_of(**more).breakdown.gradient
    gradient = [(2.0 * own[:2]).tolist(), [], (3.0 * own[2:]).tolist()]
    found = advantages.effective_advantages(case_of({"gradient": gradient}, **more))
    np.testing.assert_allclose(found, [2.0, math.nan, -3.0], rtol=1e-12)  # type: ignore[arg-type]


def test_a_gradient_that_no_advantage_gives_has_none() -> None:
    slopes = told()[1]
    slopes[2][0] *= 1.5
    assert advantages.effective_advantages(expecting((1.0, slopes))) is None
    assert advantages.effective_advantages(case_of({"loss": 1.0})) is None


# ---- discounts ----------------------------------------------------------------------------------


@each("gamma", [0.95, 0.9, 1.02, 0.5])
def test_discounts_are_named_by_their_number(gamma) -> None:
    """γ^k, k the tokens behind, or before."""
    behind = [gamma**k for n in LENGTHS for k in range(n - 1, -1, -1)]
    before = [gamma**k for n in LENGTHS for k in range(n)]
    for counts, words in ((behind, "towards the start"), (before, "towards the end")):
        wrong = told(counts=counts, beta=0.0)
        case = expecting(wrong, flags={"beta": 0.0})
        said = f"advantages discounted {words} of each response: A times {gamma} per position"
        assert named(advantages.discounted, case) == [said]
        check(by_words(advantages.discounted(case))[said], case, wrong)


def test_a_discount_is_that_of_what_says_enough() -> None:
    """Of more than a hundredth of the largest, of the right sign, and behind another token."""
    places = np.array([0, 1, 2])
    for size, turn, gamma in ((1.1, 1, 0.5), (0.9, 1, None), (1.1, -1, None)):
        ours = np.array([1.0, 0.01 * size, 0.0])
        wanted = np.array([3.0, turn * 0.005 * size, 0.7])
        found = advantages.gamma_of_tokens(wanted, ours, places)
        assert found == (None if gamma is None else pytest.approx(gamma, rel=1e-12))
    found = advantages.gamma_of_tokens(np.array([9.0, 0.25]), np.ones(2), np.array([0, 2]))
    assert found == pytest.approx(0.5, rel=1e-12)


@each("gamma", [0.3, 0.95, 1.05, 0.0005, 1.11])
def test_a_discount_of_a_ratio_of_whole_responses(gamma) -> None:
    """Each token has the mean of γ^k; only γ between 0.001 and 1.1 are looked for."""
    places = np.array([2, 1, 0, 3, 2, 1, 0])
    responses = SimpleNamespace(starts=np.array([0, 3]), lengths=np.array([3, 4]))
    ours = np.array([0.3, -0.2, 0.4, 1.0, -2.0, 0.5, 0.7])
    for row, own in ((0, slice(0, 3)), (1, slice(3, 7))):
        wanted = ours * float(np.mean(gamma ** places[own]))
        found = advantages.gamma_of_row(wanted, ours, places, responses, row)
        if 1e-3 < gamma < 1.1:
            assert found == pytest.approx(gamma, rel=1e-9)
        else:
            assert found is None


# ---- windows ------------------------------------------------------------------------------------


@each(
    ("low", "high", "words"),
    [
        (0.2, 0.25, "epsilon_high 0.25 where 0.3 is meant"),
        (0.2, 0.45, "epsilon_high 0.45 where 0.3 is meant"),
        (0.1, 0.3, "epsilon_low 0.1 where 0.2 is meant"),
        (0.3, 0.3, "epsilon_low 0.3 where 0.2 is meant"),
        (0.25, 0.25, "epsilon_low 0.25 where 0.2 is meant, epsilon_high 0.25 where 0.3 is meant"),
        (0.3, 0.45, "epsilon_low 0.3 where 0.2 is meant, epsilon_high 0.45 where 0.3 is meant"),
    ],
)
def test_another_epsilon_is_named_by_its_number(low, high, words) -> None:
    """Either, both the same, or both in proportion."""
    wrong = told(lambda m, a, _: right(math.exp(m), a, 1 - low, 1 + high))
    case = expecting(wrong)
    assert named(clips.windows, case)[0] == words  # the search takes one
    check(by_words(clips.windows(case))[words], case, wrong)


@each(
    ("sizes", "turn", "least", "most", "clipped", "slope"),
    [
        ([9.0, 9.0, 9.0, 9.0], 1.0, 1.1, 1.4, [2, 3], 9 / 1.5 + 9 / 1.4),
        ([9.0, 9.0, 9.0, 3.1], 1.0, 1.1, 1.4, [2, 3], 9 / 1.5 + 3.1 / 1.4),
        ([9.0, 9.0, 9.0, 2.9], 1.0, 1.1, 1.5, [2], 9 / 1.5),
        ([9.0, 2.9, 9.0, 9.0], 1.0, 0.7, 1.4, [2, 3], 9 / 1.5 + 9 / 1.4),
        ([2.0, 2.0, 9.0, 9.0], 1.0, -math.inf, 1.4, [2, 3], 9 / 1.5 + 9 / 1.4),
        ([9.0, 9.0, 2.0, 2.0], 1.0, 1.1, math.inf, [], 0.0),
        ([-9.0] * 4, 1.0, -math.inf, math.inf, [], 0.0),
        ([-9.0] * 4, -1.0, None, None, None, 0.0),
        ([-9.0, 0.0, -9.0, -2.9], -1.0, None, None, None, 0.0),
        ([-9.0, 0.0, 0.0, -9.0], -1.0, None, None, None, 0.0),
    ],
)
def test_between_which_ratios_a_bound_lies(sizes, turn, least, most, clipped, slope) -> None:
    """The first two have a gradient; ratios 0.7, 1.1, 1.5, 1.4, of what says three times as much
    as nothing does."""
    ratio = np.array([0.7, 1.1, 1.5, 1.4])
    breakdown = SimpleNamespace(
        ratio=ratio, advantage=np.sign(sizes), token_weight=np.abs(sizes) / ratio
    )
    case: Any = SimpleNamespace(breakdown=breakdown, quiet=1.0)
    found = clips.side_of(case, np.array([True, True, False, False]), turn)
    if least is None:
        assert found is None
        return
    assert found is not None
    assert (found.least, found.most) == (least, most)
    assert np.flatnonzero(found.clipped).tolist() == clipped
    assert found.slope == pytest.approx(slope, rel=1e-12)


def test_a_lower_bound_lies_between_the_ratios_of_what_it_binds_and_of_others() -> None:
    ratio = np.array([0.7, 1.1, 0.75, 0.9])
    breakdown = SimpleNamespace(ratio=ratio, advantage=-np.ones(4), token_weight=np.full(4, 9.0))
    case: Any = SimpleNamespace(breakdown=breakdown, quiet=1.0)
    found = clips.side_of(case, np.array([False, True, False, True]), -1.0)
    assert found is not None
    assert (found.least, found.most, found.slope) == (0.75, 0.9, -18.0)
    assert found.clipped.tolist() == [True, False, True, False]


def test_an_epsilon_of_0_is_a_number_too() -> None:
    """All that goes the way of A is clipped; the other bound is told where it is another."""
    for own, wrong, words in (
        ((0.0, 0.3), (0.0, 0.1), "epsilon_high 0.1 where 0.3 is meant"),
        ((0.2, 0.0), (0.1, 0.0), "epsilon_low 0.1 where 0.2 is meant"),
    ):
        low, high = wrong
        made = told(lambda m, a, _, low=low, high=high: right(math.exp(m), a, 1 - low, 1 + high))  # type: ignore[misc]
        case = expecting(made, flags={"epsilon_low": own[0], "epsilon_high": own[1]})
        assert named(clips.windows, case)[0] == words


def test_a_bound_may_be_a_ratio_itself() -> None:
    side = clips.Side(0.5, 1.5, np.zeros(0, dtype=np.bool_), 0.0)
    told = [side.allows(bound) for bound in (0.49, 0.5, 1.0, 1.5, 1.51)]
    assert told == [False, True, True, True, False]


def test_which_epsilon_is_told() -> None:
    """One that is off by more than a ten-thousandth, or by more than 1e-10 of 0."""
    assert clips.window_words(0.2 * (1 + 0.9e-4), 1e-4 * 1e-6, 0.2, 0.0) == ""
    words = "epsilon_low 0.2002 where 0.2 is meant, epsilon_high 1.1e-10 where 0 is meant"
    assert clips.window_words(0.2002, 1.1e-10, 0.2, 0.0) == words
    assert (
        clips.window_words(0.2, 0.3 * (1 - 1.1e-4), 0.2, 0.3)
        == "epsilon_high 0.3 where 0.3 is meant"
    )


def test_no_window_is_looked_for_where_it_is_right() -> None:
    assert not [*clips.windows(expecting(told()))]
    assert not [*clips.windows(case_of({"gradient": told()[1]}))]


# ---- what may be looked for at all --------------------------------------------------------------


def lone(row: int) -> list[list[float]]:
    """The right slopes, but for one response, where no number makes them of ours."""
    slopes = told()[1]
    slopes[row] = [slope * (1.0 + 0.5 * at) for at, slope in enumerate(slopes[row])]
    return slopes


def test_numbers_of_responses_are_looked_for_where_every_response_may_have_one() -> None:
    """One whose gradient is no multiple of ours is enough."""
    for row in (2, 3):
        case = case_of({"gradient": lone(row)})
        assert (case.other_weights, case.other_advantages) == (False, False)
        assert not case.other_kl_weights
    right_ones = case_of({"gradient": told()[1]})
    assert right_ones.other_weights
    assert right_ones.other_advantages
    assert right_ones.other_kl_weights
    alone = case_of({"loss": 1.0})
    assert alone.other_weights
    assert alone.other_advantages
    assert alone.other_kl_weights


def test_a_noise_that_agrees_hides_no_multiple() -> None:
    """Four times the root of the response's tokens of what may be off; more is none."""
    slopes, turned = np.array(told()[1][2]), np.array(askew(2))
    top = max(abs(slope) for row in told()[1] for slope in row)
    turned /= np.abs(turned).max()
    for times, fits in ((0.9, True), (1.1, False)):
        room = 4.0 * 2.0 * 2e-4 * top  # of four tokens, 1e-4 of the number and of the scale
        rows = told()[1]
        rows[2] = (slopes + times * room * turned).tolist()
        assert case_of({"gradient": rows}).other_weights is fits


def test_what_half_precision_leaves_off_hides_no_multiple() -> None:
    """Every number by one step of bfloat16 up or down, by turns."""
    slopes = told()[1]
    rows = [
        [float(np.float32(np.ldexp(np.rint(np.ldexp(m, 8)) + (-1) ** at, e - 8)))
         for at, (m, e) in enumerate(map(math.frexp, row))]
        for row in slopes
    ]  # fmt: skip
    case = case_of({"gradient": rows})
    assert [*case.columns[0].precision] == ["bfloat16"]
    assert case.other_weights
    assert not case_of({"gradient": [[1.0001 * one for one in row] for row in rows]}).other_weights


def test_what_another_evaluation_lacks_is_not_explained_by_it() -> None:
    case = case_of({"kl": [[0.1] * n for n in LENGTHS]})
    assert not case.agrees(case_of(stages={"kl": "none"}, flags={"beta": None}).breakdown)
    again = case.breakdown.kl
    assert again is not None
    starts = np.cumsum(LENGTHS)[:-1]
    right_one = case_of({"kl": [part.tolist() for part in np.split(again, starts)]})
    assert right_one.agrees(case.breakdown)


def test_gradients_and_losses_of_either_sign() -> None:
    j, slopes = told()
    turned = [[-slope for slope in row] for row in slopes]
    for expected in ({"objective": j, "gradient": slopes}, {"loss": -j, "loss_gradient": turned}):
        case = case_of(expected)
        assert case.loss == pytest.approx(j)
        np.testing.assert_allclose(case.gradient, np.concatenate(slopes))
    nothing = case_of({"advantages": A})
    assert (nothing.loss, nothing.gradient) == (None, None)
    holes = [*slopes[:3], [slopes[3][0], None, slopes[3][2]]]
    assert case_of({"gradient": holes}).gradient is None


# ---- other choices ------------------------------------------------------------------------------


def test_choices_of_either_kind() -> None:
    """Those of no framework first; each says of a sum or a mean what it is."""
    made = [cause.words for cause in choices.neutral(case_of(groups=[0, 0, 1, 1]))]
    assert not any("/" in words.partition(" where ")[0] for words in made)
    assert {
        "ratio sequence where token is meant",
        "other denominator: aggregate token-mean where response-mean is meant",
        "other denominator: aggregate prompt-mean where response-mean is meant",
        "sum where a mean is meant: aggregate sum where response-mean is meant",
    } <= {*made}
    assert not any("response-mean where" in words or "ratio token where" in words for words in made)
    summed = [cause.words for cause in choices.neutral(case_of(stages={"aggregate": "sum"}))]
    assert "mean where a sum is meant: aggregate token-mean where sum is meant" in summed
    assert not any("token-sum-norm" in words for words in made)  # its length is not known
    known = choices.neutral(case_of(hyperparameters={"max_completion_length": 64}))
    assert any("token-sum-norm" in cause.words for cause in known)


def test_choices_give_what_they_say() -> None:
    """The mean over tokens; a ratio of whole responses."""
    case = case_of()
    made = by_words(choices.neutral(case))
    words = "other denominator: aggregate token-mean where response-mean is meant"
    check(made[words], case, told(weight=lambda _: 0.1))
    again = made["ratio sequence where token is meant"].evaluate(case)
    means = [math.exp(math.fsum(row) / len(row)) for row in MOVES]
    np.testing.assert_allclose(again.ratio, np.repeat(means, LENGTHS), rtol=1e-13)


def test_an_aggregation_is_swapped_for_the_kl_as_well() -> None:
    """Whatever the KL has for itself; another stage leaves that as it is."""
    case = case_of(stages={"kl_aggregate": "token-sum"})
    assert case.other_weights
    made = by_words(choices.neutral(case))
    words = "other denominator: aggregate token-mean where response-mean is meant"
    check(made[words], case, told(weight=lambda _: 0.1))
    again = made["ratio on-policy where token is meant"].evaluate(case)
    level = told(lambda _, a, __: (a, a), weight=lambda row: 1 / (4 * LENGTHS[row]), beta=0.0)
    penalty = both(lambda _: 0.25)[0] - told(beta=0.0)[0]
    assert again.record_objective[0] == pytest.approx(level[0] + penalty, rel=1e-12)


def test_any_choice_is_of_frameworks_but_for_surrogates() -> None:
    """Advantages only where they are made of rewards; weights where weights may do."""
    case = case_of()
    made = [
        (cause.stage, cause.words.rpartition(" where ")[0]) for cause in choices.any_choice(case)
    ]
    assert ("surrogate", "surrogate unclipped") in made
    assert {stage for stage, _ in made} == {"surrogate", "aggregate", "ratio", "correction"}
    assert all("/" in words for stage, words in made if stage != "surrogate")
    noisy = case_of({"gradient": lone(2)})
    assert "aggregate" not in {cause.stage for cause in choices.any_choice(noisy)}
    assert "aggregate" not in {cause.stage for cause in choices.neutral(noisy)}
    rewarded = case_of(advantages=None, rewards=[1.0, 0.0, 0.3, 0.5])
    assert "advantage" in {cause.stage for cause in choices.any_choice(rewarded)}
    rewarded = case_of({"gradient": told()[1]}, advantages=None, rewards=[1.0, 0.0, 0.3, 0.5])
    few = replace(rewarded)
    few.__dict__["other_advantages"] = False
    left = [one for one in choices.any_choice(few) if one.stage == "advantage"]
    more = [one for one in choices.any_choice(rewarded) if one.stage == "advantage"]
    assert 0 < len(left) < len(more)
    assert all("/" in one.words.rpartition(" where ")[0] for one in more)
    names = {one.words.split()[1] for one in left}
    assert "verl/reinforce_plus_plus" in names  # a number of each token's own
    assert "verl/grpo" not in names


# ---- what is known where nothing explains it ----------------------------------------------------


def of_tokens(change: Callable[[int, float], float], **more: Any) -> str:
    numbers = iter(range(10))
    rows = [[change(next(numbers), slope) for slope in row] for row in told()[1]]
    return pattern(case_of({"gradient": rows}, **more))


@each(
    ("at", "words"),
    [
        ([0, 3, 8], "3 of 10 gradients differ, in responses 0, 2, 3"),
        ([4], "1 of 10 gradients differ, in response 2, only among those of tokens that are not"
              " clipped"),
        (range(10), "10 of 10 gradients differ"),
        (LAST, "4 of 10 gradients differ, exactly the last of each response"),
        (FIRST, "4 of 10 gradients differ, exactly the first of each response"),
        ([0, 1, 3, 4, 5, 6], "6 of 10 gradients differ, in responses 0, 2, exactly those with"
                             " A > 0"),
        ([2, 7, 8, 9], "4 of 10 gradients differ, in responses 1, 3, exactly those with A < 0"),
        ([1, 7], "2 of 10 gradients differ, in responses 0, 3, exactly those of clipped tokens"),
        ([0, 1, 2, 4, 5, 8], "6 of 10 gradients differ, exactly those with ratio above 1"),
        ([3, 6, 7, 9], "4 of 10 gradients differ, in responses 2, 3, exactly those with ratio"
                       " below 1"),
    ],
)  # fmt: skip
def test_where_gradients_differ(at, words) -> None:
    slopes = np.concatenate(told()[1])
    random = np.random.default_rng(5)
    noise = random.uniform(0.3, 1.0, 10)
    said = of_tokens(lambda one, slope: slope + noise[one] if one in at else slope)
    if "only" in words or "exactly" in words:
        assert said.partition(", by a constant factor")[0] == words
    else:
        assert said.startswith(words)
    times = of_tokens(lambda one, slope: 1.37 * slope if one in at else slope)
    assert times.endswith(", by a constant factor: expected is ours times 1.37")
    none = of_tokens(lambda one, slope: 0.0 if one in at else slope)
    assert none.endswith(", where 0 is expected")
    assert np.abs(slopes).min() > 1e-4


def test_where_ours_are_0() -> None:
    wrong = told(beta=0.0)
    rows = [[*row] for row in wrong[1]]
    rows[0][1] = 0.3  # clipped
    case = case_of({"gradient": rows}, flags={"beta": 0.0})
    said = "1 of 10 gradients differ, in response 0, exactly those of clipped tokens"
    assert pattern(case) == f"{said}, where ours are 0"


def test_where_the_gradient_agrees() -> None:
    j, slopes = told()
    agrees = "the gradient agrees: only values differ (a constant, or what has no gradient)"
    assert pattern(case_of({"gradient": slopes, "advantages": [3.0] * 4})) == agrees
    said = pattern(case_of({"gradient": slopes, "loss": -1.25 * j}))
    assert said == f"{agrees}, the loss is ours times 1.25"
    assert pattern(case_of({"loss": 1.0})) == ""
