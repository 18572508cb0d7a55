"""Wrong penalties, denominators, tokens and factors are named for what they are, by definitions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from files import each, some
from mistakes import (
    BETA,
    ENGINE,
    FAR,
    FLAGS,
    LENGTHS,
    MOVES,
    NEW,
    RECORD,
    A,
    Outcome,
    Rows,
    causes,
    check,
    compute,
    difference,
    expects,
    k3,
    subtract,
)

from grpo_cli import evaluate, verify

pytestmark = pytest.mark.more

# ---- KL -----------------------------------------------------------------------------------------


def weighted(d: float, m: float, *, slope: bool = True) -> Outcome:
    """ρ·k, and what of it is differentiated: ρ and k, or ρ alone."""
    ratio, (k, dk) = math.exp(m), k3(d)
    return ratio * k, ratio * k + (ratio * dk if slope else 0.0)


ADDED = "β with the wrong sign (−β): the KL is added to the objective"
KL_OVER = (
    "KL over another denominator: your loss divides each token by {}; grpo divides by "
    "responses, of token means"
)
PENALTIES = {
    "KL estimator d² (k2 without the factor 1/2) instead of k3": compute(
        penalty=lambda d, _: (d * d, 2 * d)
    ),
    "KL estimator k3+ (verl's low_var_kl+) instead of k3": compute(
        penalty=lambda d, _: (k3(d)[0], d)
    ),
    "KL estimator max(d, 0) instead of k3, d = log π_θ − log π_ref": compute(
        penalty=lambda d, _: (max(d, 0.0), float(d > 0))
    ),
    "KL estimator exp(−d) − 1 (k3 without + d) instead of k3, d = log π_θ − log π_ref": compute(
        penalty=lambda d, _: (math.expm1(-d), -math.exp(-d))
    ),
    "β is 0.0502 instead of 0.05 (-p beta=0.0502)": compute(beta=0.0502),
    "KL to the engine's policy instead of the reference": compute(far=ENGINE),
    KL_OVER.format("the number of tokens (token-mean over this micro-batch, its local count)"): (
        compute(kl_weight=lambda _: 0.1)
    ),
    KL_OVER.format("the number of responses (token-sum: sum over tokens, mean over responses)"): (
        compute(kl_weight=lambda _: 0.25)
    ),
    # the sum over responses is four times their mean: a β that somebody may have typed
    "β is 0.2 instead of 0.05 (-p beta=0.2)": compute(kl_weight=lambda row: 1.0 / LENGTHS[row]),
    "KL weighted by the ratio, and another denominator: your loss divides each token by the "
    "number of tokens (token-mean over this micro-batch, its local count); grpo divides by "
    "responses, of token means": (compute(penalty=weighted, weight=lambda _: 0.1)),
}


@each(("words", "numbers"), PENALTIES.items())
def test_wrong_penalties(words, numbers) -> None:
    check(words, numbers, flags={"kl_weight": "none"})


def clamped(m: float, a: float, _: float) -> Outcome:
    """The clipped product alone, on both sides of A."""
    ratio = math.exp(m)
    inside = min(max(ratio, 0.8), 1.3) == ratio
    return min(max(ratio, 0.8), 1.3) * a, ratio * a * inside


@each(
    ("words", "numbers"),
    [
        (
            f"{ADDED}, and another denominator: your loss divides each token by the number of "
            "tokens (token-mean over this micro-batch, its local count); grpo divides by "
            "responses, of token means",
            compute(beta=-BETA, weight=lambda _: 0.1),
        ),
        (
            "KL direction reversed: your KL exchanges π_θ and π_ref, and no min: only the "
            "clipped product counts, on both sides of A",
            compute(clamped, lambda d, _: (math.expm1(d) - d, math.expm1(d))),
        ),
    ],
)
def test_a_wrong_penalty_and_another_mistake(words, numbers) -> None:
    check(words, numbers)


def test_a_std_over_n_and_another_mistake() -> None:
    rewards = [2.0, 0.0, 1.0, -3.0]
    whole = statistics.pstdev(rewards)
    counts = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0]
    numbers = compute(a=[one / whole for one in rewards], counts=counts)
    words = "ddof 0 instead of 1 (-p std_ddof=0), and the last token of every response "
    words += "is dropped (gradient 0)"
    check(words, numbers, advantages=None, rewards=rewards)


def test_a_kl_whose_weight_alone_has_a_gradient() -> None:
    numbers = compute(penalty=lambda d, m: weighted(d, m, slope=False))
    words = "KL without gradient (detached), except through its weight"
    check(words, numbers, flags={"kl_weight": "ratio"})


def test_a_kl_of_the_old_policy_has_no_gradient() -> None:
    old = iter([x for row in subtract(FAR, MOVES) for x in row])
    numbers = compute(penalty=lambda *_: (k3(next(old))[0], 0.0))
    check("KL of the old policy (π_old in place of π_θ) to the reference: no gradient", numbers)


def test_a_kl_with_weights_of_its_own_and_a_beta_that_nobody_typed() -> None:
    numbers = compute(kl_weight=lambda row: 1.0 / LENGTHS[row], beta=0.0512345)
    words = KL_OVER.format("its response's tokens × 1 (a sum over responses)")
    check(words, numbers, flags={"beta": 0.0512345})


def test_a_beta_is_solved_for_where_some_tokens_have_no_kl() -> None:
    far = [[0.0, -0.2], *FAR[1:]]
    numbers = compute(far=far, beta=0.15)
    check("β is 0.15 instead of 0.05 (-p beta=0.15)", numbers, log_probs_ref=subtract(NEW, far))


# ---- denominators -------------------------------------------------------------------------------

WIDTHS = [3, 2, 4, 6]
STEPS = " × 5, perhaps the accumulation steps"
COUNTS = {
    "1 (sum over tokens: no denominator)": 1,
    "the number of tokens (token-mean over this micro-batch, its local count)": 10,
    "the number of responses (token-sum: sum over tokens, mean over responses)": 4,
    "responses × max_completion_length (token-sum-norm: a constant length)": 28,
    "responses × the padded width (mean over padded positions)": 24,
    "the number of tokens including masked tokens (the denominator ignores the mask)": 15,
    "num_items_in_batch": 13,
    "max_completion_length alone": 7,
    "the number of groups": 2,
    f"1 (sum over tokens: no denominator){STEPS}": 5,
    f"the number of tokens including masked tokens (the denominator ignores the mask){STEPS}": 75,
}
SUMMED = "1 (a sum over responses)"
MEANS = {
    "the number of responses (response-mean: mean over responses of token means)": 4,
    "responses − 1 (B − 1)": 3,
    SUMMED: 1,
    "the number of groups": 2,
    f"responses − 1 (B − 1){STEPS}": 15,
}
OWN = "divides each token by its response's tokens × "
SHAPES: list[tuple[str, Callable[[int], float], dict[str, int]]] = [
    ("divides each token by ", lambda _: 1.0, COUNTS),
    (OWN, lambda row: 1 / LENGTHS[row], MEANS),
    (
        "divides each token by its response's tokens, including masked ones × ",
        lambda row: 1 / WIDTHS[row],
        MEANS,
    ),
    (
        "divides each token by its response's tokens − 1 × ",
        lambda row: 1 / max(LENGTHS[row] - 1, 1),
        MEANS,
    ),
    (
        "divides each token, multiplied by its response's tokens, by ",
        lambda row: float(LENGTHS[row]),
        MEANS,
    ),
    (
        ("divides each token by the square root of its length × "),
        lambda row: 1 / math.sqrt(LENGTHS[row]),
        MEANS,
    ),
]


def widened(rows: Sequence[Sequence[float]], value: float = -1.0) -> Rows:
    """With masked tokens behind: 15 as written, of which 10 count."""
    return [[*row] + [value] * (n - len(row)) for row, n in zip(rows, WIDTHS, strict=True)]


def divided(weight: Callable[[int], float]) -> tuple[list[str], str | None]:
    """The causes of a record with such weights, and what is known without a cause."""
    columns = {name: widened(RECORD[name]) for name in RECORD if name.startswith("log_probs")}
    columns["mask"] = widened([[1] * n for n in LENGTHS], 0)
    said = {"max_completion_length": 7, "num_items_in_batch": 13, "gradient_accumulation_steps": 5}
    j, slopes = compute(weight=weight)
    found = difference(
        expects((j, widened(slopes, 0.0))), hyperparameters=said, groups=[0, 0, 1, 1], **columns
    )
    return [*found.causes, *found.possible], found.pattern


def test_denominators_are_named() -> None:
    """By what they count; as a sum where all tokens weigh more than twice what they should."""
    for shape, of, counts in SHAPES:
        for name, count in counts.items():
            if shape == OWN and (count == 4 or name == "the number of groups"):
                continue  # the right one, and a small factor that many other counts are
            factor = min(of(row) / count * 4 * LENGTHS[row] for row in range(4))
            found, _ = divided(lambda row, of=of, count=count: of(row) / count)  # type: ignore[misc]
            words = f"denominator: your loss {shape}{name}; grpo"
            if shape == OWN and name == SUMMED:
                assert any(one.startswith("mean over responses missing") for one in found)
                continue
            (said,) = {one.partition(words)[0] for one in found if words in one} or {""}
            kinds = {"another "} if factor < 1.999 else set()
            kinds |= {"a sum instead of a mean, or another "} if factor > 1.999 else set()
            kinds |= {"another "} if abs(factor - 2.0) < 1e-9 else set()
            assert said in kinds, (shape, name, found)


@each(
    ("weight", "words"),
    [
        (lambda _: 1 / 3.7, "denominator: your loss divides each token by 3.7; grpo"
         " divides by responses, of token means"),
        (lambda row: 1.7 / (4 * LENGTHS[row]),
         "off by a constant factor: yours is the computed one times 1.7"),
        (lambda row: 1 / (row + 2.3), None),
        (lambda row: (1 + (0, 2.9e-4, -2.9e-4, -2.9e-4)[row]) / 13, None),
    ],
)  # fmt: skip
def test_denominators_without_a_name(weight, words) -> None:
    """As numbers, where the weights go with the lengths at all."""
    found, _ = divided(weight)
    assert found == ([] if words is None else [words])


def test_truncated_responses_that_count_still() -> None:
    """Two tokens and a masked response of five, two of them padding: divided by 2 + 3."""
    rows = [[-0.5, -0.9], [-0.4] * 5]
    columns = dict.fromkeys(("log_probs_new", "log_probs_old", "log_probs_ref"), rows)
    more = {"mask": [[1, 1], [0] * 5], "log_probs_rollout": None, "advantages": [1.0, -1.0]}
    for ids, of in (([3, 4, 5, 0, 0], 5), ([3, 4, 5, 6, 0], 7), (None, 7)):
        tokens = None if ids is None else [[3, 4], ids]
        expected = {"gradient": [[1 / of, 1 / of], [0.0] * 5]}
        found = difference(expected, token_ids=tokens, **columns, **more).causes
        words = "the number of tokens including responses that are masked entirely (truncated"
        assert any(words in one for one in found), (ids, found)


@each("mask", [None, [[1, 1], [1] * 5]])
def test_no_masked_tokens_are_named_where_none_is_masked(mask: Any) -> None:
    rows = [[-0.5, -0.9], [-0.4] * 5]
    columns = dict.fromkeys(("log_probs_new", "log_probs_old", "log_probs_ref"), rows)
    more = {"mask": mask, "log_probs_rollout": None, "advantages": [1.0, -1.0]}
    expected = {"gradient": [[1 / 7] * 2, [-1 / 7] * 5]}
    found = difference(expected, **columns, **more).causes
    assert any("the number of tokens" in one for one in found)
    assert not any("masked" in one for one in found), found


def test_a_response_without_tokens_has_no_weight() -> None:
    """Means over two responses with tokens, each over two of the three: B − 1."""
    rows: Rows = [[-0.5, -0.9], [], [-0.4]]
    columns = dict.fromkeys(("log_probs_new", "log_probs_old", "log_probs_ref"), rows)
    expected = {"objective": 0.5 - 1.5, "gradient": [[0.25, 0.25], [], [-1.5]]}
    more = {"log_probs_rollout": None, "advantages": [1.0, 2.0, -3.0]}
    found = difference(expected, **columns, **more).causes
    assert any(
        ("divides each token by its response's tokens × responses − 1 (B − 1)") in one
        for one in found
    )


def test_a_denominator_that_two_names_have_is_said_once() -> None:
    """Nothing is masked, so a response's tokens and its tokens as written are one number."""
    found = verify("samples/trl_grpo.jsonl", "dr").records[0].first
    assert found is not None
    assert found.cause == (
        "another denominator: your loss divides each token by its response's tokens × "
        "the number of responses (response-mean: mean over responses of token means) × 2, "
        "perhaps the accumulation steps; dr divides by responses"
    )


# ---- tokens -------------------------------------------------------------------------------------

LAST, FIRST = [1, 2, 6, 9], [0, 2, 3, 7]
TIMES = {"dropped (gradient 0)": 0.0, "doubled": 2.0}
TOKENS = [
    (LAST, "the last token of every response is {}"),
    (FIRST, "the first token of every response is {}"),
    ([4], "1 of 10 tokens is {}: token 1 of response 2"),
    ([6], "1 of 10 tokens is {}: the last token of response 2"),
    ([4, 8], "2 of 10 tokens are {}: the first is token 1 of response 2"),
    ([2], "response 1 is {}: 1 of 10 tokens"),
    ([3, 4, 5, 6], "response 2 is {}: 4 of 10 tokens"),
    ([0, 1, 7, 8, 9], "responses 0, 3 are {}: 5 of 10 tokens"),
]


def count(at: Sequence[int], times: float) -> list[float]:
    return [times if one in at else 1.0 for one in range(10)]


@each(("at", "words"), some(TOKENS, -(-len(TOKENS) // 2)))
def test_tokens_that_do_not_count_or_count_twice(at, words) -> None:
    for said, times in TIMES.items():
        check(words.format(said), compute(counts=count(at, times)))


@each(("suffix", "times"), TIMES.items())
def test_a_clipped_token_that_does_not_count_or_counts_twice(suffix, times) -> None:
    """Its gradient is 0 either way; the loss is off by its value, not by a factor of 0.99."""
    seen = evaluate(RECORD, **FLAGS | {"beta": 0.0}).breakdown
    values, index = seen.contribution, seen.batch.responses.index
    at = int(np.flatnonzero(seen.clip)[0])
    loss = -float(values.sum() + (times - 1.0) * values[at])
    gradient = [seen.gradient[index == row].tolist() for row in range(len(A))]
    found = difference({"loss": loss, "gradient": gradient}, flags={"beta": 0.0})
    assert [one.partition(":")[0] for one in found.causes] == [f"1 of 10 tokens is {suffix}"]
    assert f"of response {index[at]}" in found.causes[0]


@each(("groups", "count"), [(1, "or the number of groups;"), (2, "no denominator);")])
def test_what_is_said_of_one_denominator_is_one_sentence(groups, count) -> None:
    named = {"id": "r", "group_ids": [at % groups for at in range(len(A))]}
    seen = evaluate(RECORD | named, stages={"aggregate": "sum"}, **FLAGS)
    index = seen.breakdown.batch.responses.index
    gradient = [seen.breakdown.gradient[index == row].tolist() for row in range(len(A))]
    found = verify(RECORD | named | {"expected": {"gradient": gradient}}, **FLAGS)
    assert len(found.causes) > 1
    words = "(aggregate sum instead of response-mean): your loss divides each token by 1 (sum over"
    assert words in found.headline
    assert f"{count} grpo divides by responses" in found.headline
    assert found.headline.count("divides each token by") == 1


def test_last_tokens_alone_or_twice_with_their_denominators() -> None:
    last, every = "the last token of every response", count(LAST, 2.0)
    alone = [float(at in LAST) for at in range(10)]
    ends = f"only {last} counts"
    check(f"{ends} (the denominators stay)", compute(counts=alone))
    numbers = compute(counts=alone, weight=lambda _: 1 / 4)
    check(f"{ends}, in the denominator too", numbers)
    numbers = compute(counts=every, weight=lambda row: 1 / (4 * (LENGTHS[row] + 1)))
    check(f"{last} is doubled, in the denominator too", numbers)
    numbers = compute(counts=every, weight=lambda _: 1 / 14)
    check(f"{last} is doubled, in the denominator too", numbers, stages={"aggregate": "token-mean"})


def test_responses_that_are_named_are_no_more_than_five() -> None:
    columns = dict.fromkeys(("log_probs_new", "log_probs_old", "log_probs_ref"), [[-0.5]] * 7)
    more = {"log_probs_rollout": None, "advantages": [1.0] * 7}
    for right, said in ((1, "1, 2, 3, 4, 5, …"), (2, "2, 3, 4, 5, 6")):
        gradient = [[1 / 7]] * right + [[0.0]] * (7 - right)
        found = difference({"gradient": gradient}, **columns, **more).causes
        what = f"responses {said} are dropped (gradient 0): {7 - right} of 7 tokens"
        assert what in found


def test_masked_tokens_that_count() -> None:
    """They are compared where they count, and evaluated all; where they can be."""
    mask = [[1, 1], [1], [1, 0, 1, 1], [1, 1, 0]]
    words = "mask ignored: masked tokens count"
    j, slopes = compute()
    check(words, (j, slopes), mask=mask)
    slopes[2][1] = 7.0  # masked
    assert words not in causes((j, slopes), mask=mask)
    slopes[2][1] = None
    check(words, (j, slopes), mask=mask)
    slopes[3][1] *= 1.1
    assert words not in causes((j, slopes), mask=mask)
    columns: dict[str, Any] = {
        "log_probs_new": [[-1.0, 0.5], [-0.5, -0.25]],
        "mask": [[1, 0], [1, 1]],
    }
    columns |= {"log_probs_old": None, "log_probs_ref": None, "log_probs_rollout": None}
    more = {"stages": {"kl": "none"}, "flags": {"beta": None}, "advantages": [1.0, -1.0]}
    assert difference({"loss": 9.1}, **columns, **more).causes == ()


def test_a_gradient_at_a_masked_token_is_a_difference() -> None:
    """Of the right numbers, and with the place of the token; null and NaN expect nothing."""
    mask = [[1, 1], [1], [1, 0, 1, 1], [1, 1, 1]]
    seen = evaluate(RECORD | {"mask": mask}, **FLAGS)
    slopes = iter(seen.breakdown.gradient.tolist())
    rows: list[list[Any]] = [[next(slopes) if one else 0.0 for one in row] for row in mask]
    for value, agrees in ((0.0, True), (None, True), (float("nan"), True), (0.01, False)):
        rows[2][1] = value
        record = RECORD | {"mask": mask, "expected": {"gradient": rows}}
        (found,) = verify(record, "grpo", **FLAGS).records
        assert found.agrees is agrees
    assert found.first is not None
    assert (found.first.response, found.first.token, found.first.got) == (2, 1, 0.0)


def test_masked_tokens_are_no_positions() -> None:
    """The third token of response 2 as written is the second that counts."""
    mask = [[1, 1], [1], [1, 0, 1, 1], [1, 1, 0]]
    seen = evaluate(RECORD | {"mask": mask}, **FLAGS)
    slopes = iter(seen.breakdown.gradient.tolist())
    rows = [[next(slopes) if one else 0.0 for one in row] for row in mask]
    rows[2][2] = 0.0
    found = difference({"gradient": rows}, mask=mask)
    assert (found.response, found.token) == (2, 2)
    assert found.causes[0] == "1 of 8 tokens is dropped (gradient 0): token 2 of response 2"


# ---- factors ------------------------------------------------------------------------------------

SUM = "a sum instead of a mean, or a mean instead of a sum: yours is the computed one"
FACTOR = "off by a factor, perhaps of accumulation: yours is the computed one"


def scaled(loss: float, gradient: float | None, **said: Any) -> list[str]:
    j, slopes = compute()
    expected: dict[str, Any] = {"loss": -loss * j}
    if gradient is not None:
        expected["gradient"] = [[gradient * slope for slope in row] for row in slopes]
    found = difference(expected, hyperparameters=said, groups=[0, 0, 0, 1])
    return [*found.causes]


@each(
    ("times", "said", "words"),
    some([
        (-1.0, {},
         "wrong sign: your loss is the negative of the computed loss (loss = −objective)"),
        (10.0, {}, f"{SUM} times the number of tokens = 10"),
        (0.25, {}, f"{SUM} divided by the number of responses = 4"),
        (-2.0, {}, f"{SUM} times the number of groups = 2, with the wrong sign"),
        (7.0, {"max_completion_length": 7}, f"{SUM} times max_completion_length = 7"),
        (0.25, {}, "loss ÷ 4: gradient accumulation of 4"),
        (1 / 9, {"response_length": 9}, f"{SUM} divided by response_length = 9"),
        (3.0, {"dp_size": 3}, f"{FACTOR} times dp_size = 3"),
        (-0.2, {"gradient_accumulation_steps": 5},
         f"{FACTOR} divided by gradient_accumulation_steps = 5, with the wrong sign"),
        (8.0, {"steps_per_generation": 8}, f"{FACTOR} times steps_per_generation = 8"),
        (1 / 8, {}, "loss ÷ 8: gradient accumulation of 8"),
        (1 / 6, {"num_processes": 6}, f"{FACTOR} divided by num_processes = 6"),
        (3.0, {}, None),
        (-3.0, {}, None),
        (1917.0, {}, None),
        (1917.05, {}, None),
        (1 / 1917.05, {}, None),
        (1.5, {}, None),
        (3.001, {"dp_size": 3}, None),
    ], 7),
)  # fmt: skip
def test_factors_of_a_loss(times, said, words) -> None:
    """Of a gradient too, only those of accumulation have their name."""
    found = scaled(times, None, **said)
    assert found == [] if words is None else words in found
    if words is not None and words.startswith(FACTOR):
        assert words in scaled(times, times, **said)


@each(
    ("loss", "gradient", "words"),
    [
        (
            1.0,
            1.37,
            "only the gradient differs: yours is the computed one times 1.37, and the loss agrees",
        ),
        (2.5, 1.0, "only the logged loss differs: yours is the computed one times 2.5"),
        (-1.0, 1.0, "wrong sign: only the logged loss differs: yours is the computed one times -1"),
        (0.5, 2.5, "off by constant factors: gradient times 2.5, loss times 0.5"),
        (1.2345, 1.0, None),
    ],
)
def test_factors_of_the_gradient_or_of_the_loss(loss, gradient, words) -> None:
    assert scaled(loss, gradient) == ([] if words is None else [words])


# ---- other choices, and what is known where nothing explains it ---------------------------------


def test_other_choices_of_the_tables() -> None:
    """Those of no framework first; each says of a sum or a mean what it is."""
    for stages, words in (
        ({"ratio": "sequence"}, "ratio sequence instead of token"),
        ({"surrogate": "gmpo"}, "surrogate gmpo instead of clip"),
        ({"surrogate": "cispo"}, "surrogate cispo instead of clip"),
    ):
        seen = evaluate(RECORD, stages=stages, **FLAGS)
        expected = {"objective": seen.objective, "gradient": seen.gradient}
        assert difference(expected).causes == (words,)
    seen = evaluate(RECORD, stages={"aggregate": "sum"}, **FLAGS)
    words = "sum instead of a mean: aggregate sum instead of response-mean"
    assert words in difference({"loss": seen.loss}).causes
    seen = evaluate(RECORD, stages={"aggregate": "token-mean"}, **FLAGS)
    words = "mean instead of a sum: aggregate token-mean instead of sum"
    found = difference({"loss": seen.loss}, stages={"aggregate": "sum"}).causes
    assert words in found or any("the number of tokens = 10" in one for one in found)


@each(
    ("at", "words"),
    some([
        ([0, 3, 8], "3 of 10 gradients differ, in responses 0, 2, 3, by a factor that differs"),
        ([4], "1 of 10 gradients differ, in response 2"),
        (range(10), "10 of 10 gradients differ, by a factor that differs from token to token"),
        (LAST, "4 of 10 gradients differ, exactly the last token of each response; "),
        (FIRST, "4 of 10 gradients differ, exactly the first token of each response; "),
        ([0, 1, 3, 4, 5, 6], "6 of 10 gradients differ, exactly the tokens with A > 0; "),
        ([2, 7, 8, 9], "4 of 10 gradients differ, exactly the tokens with A < 0; "),
        ([1, 7], "2 of 10 gradients differ, exactly the clipped tokens; look at the "),
        ([0, 1, 2, 4, 5, 8], "6 of 10 gradients differ, exactly the tokens with a ratio above 1; "),
        ([3, 6, 7, 9], "4 of 10 gradients differ, exactly the tokens with a ratio below 1; "),
    ], 3),
)  # fmt: skip
def test_where_gradients_differ_without_a_cause(at, words) -> None:
    noise = np.random.default_rng(5).uniform(0.3, 1.0, 10).tolist()
    slopes = np.concatenate(compute()[1])
    flat = [slope + noise[one] if one in at else slope for one, slope in enumerate(slopes)]
    rows = [part.tolist() for part in np.split(flat, np.cumsum(LENGTHS)[:-1])]
    found = difference({"gradient": rows})
    assert found.causes == ()
    assert found.pattern is not None
    assert found.pattern.startswith(words)


def test_what_is_known_of_other_differences() -> None:
    j, slopes = compute()
    agrees = "the gradient agrees: only values differ (a constant, or a term without gradient)"
    found = difference({"gradient": slopes, "advantages": [3.0] * 4})
    assert found.pattern == "4 of 4 advantages already differ, though the gradient agrees"
    assert found.located == ("advantage",)
    found = difference({"gradient": slopes, "loss": -1.2512 * j})
    stages = (
        "the KL, the clip, one constant factor on the whole loss, tokens that are lost or doubled"
    )
    assert found.pattern == f"{agrees}; look at {stages} or the mask"  # 1.2512 is nobody's factor
    assert found.causes == ()  # what explains one number among so many tried is only possible
    hint = "one loss fits many mistakes: record loss_gradient, or more losses, to narrow them down"
    assert difference({("loss"): 1.0123}).pattern == f"the loss differs; {hint}"


def test_a_response_without_tokens_at_the_end_is_located_too() -> None:
    """Factors by response, and two responses that are equally long; the last has no tokens."""
    masks = [[1, 1], [1], [1, 1, 1, 1], [0, 0, 0]]
    row = {**RECORD, "mask": masks}
    again = evaluate({**row, "advantages": [1.37, -0.3, 0.21, -2.0]}, beta=0.0)
    expected = {"gradient": [*again.gradient[:3], [0.0] * 3]}
    found = verify([{**row, "expected": expected}], beta=0.0).records[0].first
    assert found is not None
    assert "advantage" in found.located


@each("loss", [1e308, 5e-324, 0.0])
def test_a_factor_that_says_nothing_is_left_out(loss: float) -> None:
    assert "times" not in difference({"loss": loss}, flags={"causes": 0}).pattern


# ---- where a loss is wrong, whatever the cause --------------------------------------------------

ODD = [1.37, 0.61, 0.83, 1.9]
"""Factors that no mistake has."""


@each(
    ("change", "words", "stages"),
    [
        (lambda g: [row * 1.2345 for row in g], "all gradients differ by one factor", "aggregate"),
        (
            lambda g: [row * by for row, by in zip(g, ODD, strict=True)],
            "the gradients, with the KL's, differ by one factor per response (0.61 to 1.9)",
            "aggregate",
        ),
        (
            lambda g: [np.where(np.arange(len(row)) == 0, row, 0.0) for row in g],
            "gradients are 0 (single tokens), and the others agree",
            "mask",
        ),
        (lambda g: [0.0 * row for row in g], "all of your gradients are 0", "ratio"),
    ],
)
def test_the_stage_is_located_without_a_cause(change, words, stages) -> None:
    slopes = [np.array(row) for row in compute()[1]]
    found = difference({"gradient": [row.tolist() for row in change(slopes)]})
    assert words in found.pattern
    assert stages in found.located


def test_a_kl_that_is_missing_at_some_tokens_is_not_called_right() -> None:
    """The clipped tokens have the KL alone and agree; the last tokens have no gradient at all."""
    last = [at == n - 1 for n in LENGTHS for at in range(n)]
    numbers = compute(a=[1.37, -0.31, 0.21, -3.8], counts=[0.0 if end else 1.0 for end in last])
    found = difference({"gradient": numbers[1]})
    assert "yours are 0 exactly at the last token of each response" in found.pattern
    assert {"mask", "kl"} <= {*found.located}
    slopes = [np.array(row) for row in compute(beta=0.0)[1]]
    odd = [row * np.linspace(0.7, 1.9, len(row)) for row in slopes]
    of_kl = [np.array(row) for row in compute(a=[0.0] * 4)[1]]
    given = [(one + two).tolist() for one, two in zip(odd, of_kl, strict=True)]
    found = difference({"gradient": given})
    assert "they agree at the 2 tokens where the policy term is clipped" in found.pattern
    assert "right" not in found.pattern
    assert "kl" not in found.located


def test_a_factor_of_rounding_is_0() -> None:
    """One factor per sign of the advantage; the other sign has what rounding leaves."""
    policy, of_kl = compute(beta=0.0)[1], compute(a=[0.0] * 4)[1]
    given = [
        [x * (0.37 if a > 0 else 3e-9) + y for x, y in zip(*rows, strict=True)]
        for a, *rows in zip(A, policy, of_kl, strict=True)
    ]
    assert "one factor per sign of the advantage (0, 0.37)" in str(
        difference({"gradient": given}).pattern
    )


def test_advantages_are_located_where_grpos_are_0_or_have_another_sign() -> None:
    _, slopes = compute(beta=0.0)
    own = [0.0, -0.4, 0.27, -2.0]
    given = {"log_probs_ref": None, "flags": {"beta": 0.0}}
    found = difference({"gradient": slopes}, advantages=own, **given)
    assert found.pattern == (
        "one advantage per response gives the gradients: 3 of 4 differ (response 0 has 1 instead "
        "of 0); look at the advantages"
    )
    assert found.located == ("advantage",)


def test_a_baseline_by_another_rule() -> None:
    """By hand: r − r_first."""
    record = {**RECORD, "rewards": [0.4, 0.1, 0.9, 0.75]}
    del record["advantages"]
    groups = [0, 0, 0, 0]

    def said(advantages: list[float], **more: object) -> tuple[str, ...]:
        given = {**record, "advantages": advantages}
        seen = evaluate(given, variant="dr")
        expected = {"objective": seen.objective, "gradient": seen.gradient}
        row = {**record, **more, "expected": expected}
        first = verify([row], variant="dr").records[0].first
        return () if first is None else tuple(first.causes)

    found = said([0.0, -0.3, 0.5, 0.35], group_ids=groups)
    assert "baseline: the reward of the first response of the group instead of the mean" in found


# ---- a mistake on top of a usual setting ---------------------------------------------------------

REWARDS = [1.0, 0.0, 0.25, 0.5]
OTHER_EPS = [
    (reward - statistics.fmean(REWARDS)) / (statistics.stdev(REWARDS) + 1e-4) for reward in REWARDS
]


@each(
    ("words", "numbers"),
    [
        (ADDED, compute(a=OTHER_EPS, beta=-BETA)),
        ("wrong sign of the advantages", compute(a=[-a for a in OTHER_EPS])),
        ("KL weighted by the ratio", compute(a=OTHER_EPS, penalty=weighted)),
    ],
)
def test_a_mistake_on_top_of_another_std_eps(words, numbers) -> None:
    said = f"std_eps 0.0001 instead of 1e-08 (-p std_eps=0.0001), and {words}"
    check(said, numbers, advantages=None, rewards=REWARDS)


def test_a_pair_that_does_not_explain_all_records_is_not_named() -> None:
    given = {**RECORD, "rewards": REWARDS}
    del given["advantages"]
    good, bad = compute(a=OTHER_EPS, beta=-BETA), compute(a=[a**3 for a in OTHER_EPS], beta=0.07)
    rows = [{**given, "id": n, "expected": expects(each)} for n, each in enumerate((good, good))]
    found = verify(rows, rtol=1e-8, **FLAGS)
    assert (found.explained, found.differing) == (2, 2)
    rows.append({**given, "id": 2, "expected": expects(bad)})
    assert all(not one.first.causes for one in verify(rows, rtol=1e-8, **FLAGS).records)
