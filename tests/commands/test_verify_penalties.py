"""Wrong penalties, denominators, tokens and factors are named for what they are, by definitions.

The causes of each are in ``cases/verify/`` (``test_causes_of_wrong_numbers``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import expressions
from mistakes import *  # noqa: F403 - which the expressions use
from mistakes import (
    FLAGS,
    LENGTHS,
    RECORD,
    A,
    Numbers,
    Outcome,
    Rows,
    causes,
    compute,
    difference,
    expects,
    k3,
)

from grpo_cli import evaluate, verify

pytestmark = pytest.mark.more

PLAIN = {"kl_weight": "none"}
SPREAD = [2.0, 0.0, 1.0, -3.0]
WIDTHS = [3, 2, 4, 6]
LAST = [1, 2, 6, 9]
MASK = [[1, 1], [1], [1, 0, 1, 1], [1, 1, 0]]
REWARDS = [1.0, 0.0, 0.25, 0.5]
OTHER_EPS = [
    (reward - statistics.fmean(REWARDS)) / (statistics.stdev(REWARDS) + 1e-4) for reward in REWARDS
]


def weighted(d: float, m: float, *, slope: bool = True) -> Outcome:
    """ρ·k, and what of it is differentiated: ρ and k, or ρ alone."""
    ratio, (k, dk) = math.exp(m), k3(d)
    return ratio * k, ratio * k + (ratio * dk if slope else 0.0)


def clamped(m: float, a: float, _: float) -> Outcome:
    """The clipped product alone, on both sides of A."""
    ratio = math.exp(m)
    bounded = min(max(ratio, 0.8), 1.3)
    return bounded * a, ratio * a * (bounded == ratio)


def widened(rows: Sequence[Sequence[float]], value: float = -1.0) -> Rows:
    """With masked tokens behind: 15 as written, of which 10 count."""
    return [[*row] + [value] * (n - len(row)) for row, n in zip(rows, WIDTHS, strict=True)]


def divided(weight: Callable[[int], float]) -> list[str]:
    """The causes of a record with such weights, certain or possible."""
    columns = {name: widened(RECORD[name]) for name in RECORD if name.startswith("log_probs")}
    columns["mask"] = widened([[1] * n for n in LENGTHS], 0)
    said = {"max_completion_length": 7, "num_items_in_batch": 13, "gradient_accumulation_steps": 5}
    j, slopes = compute(weight=weight)
    found = difference(
        expects((j, widened(slopes, 0.0))), hyperparameters=said, groups=[0, 0, 1, 1], **columns
    )
    return [*found.causes, *found.possible]


def denominators(of: Callable[[int], float], *counts: int) -> list[str]:
    found = [divided(lambda row, by=count: of(row) / by) for count in counts]  # type: ignore[misc]
    return [f"{count}: {'; or '.join(each)}" for count, each in zip(counts, found, strict=True)]


def of_rows(rows: Rows, expected: dict[str, Any], **columns: Any) -> list[str]:
    """The causes of an on-policy record of such log-probs."""
    same = dict.fromkeys(("log_probs_new", "log_probs_old", "log_probs_ref"), rows)
    return [*difference(expected, log_probs_rollout=None, **same, **columns).causes]


def truncated(gradient: Rows, **columns: Any) -> list[str]:
    rows = [[-0.5, -0.9], [-0.4] * 5]
    return of_rows(rows, {"gradient": gradient}, advantages=[1.0, -1.0], **columns)


def by_row(flat: Any) -> Rows:
    return [part.tolist() for part in np.split(np.asarray(flat), np.cumsum(LENGTHS)[:-1])]


def summed(groups: list[int]) -> str:
    """The verdict on a sum over tokens."""
    named = RECORD | {"id": "r", "group_ids": groups}
    seen = evaluate(named, stages={"aggregate": "sum"}, **FLAGS)
    gradient = by_row(seen.breakdown.gradient)
    return verify(named | {"expected": {"gradient": gradient}}, **FLAGS).headline


def count(at: Sequence[int], times: float, others: float = 1.0) -> list[float]:
    return [times if one in at else others for one in range(10)]


def counted(at: Sequence[int]) -> list[str]:
    return [one for times in (0.0, 2.0) for one in causes(compute(counts=count(at, times)))]


def clipped_token(times: float) -> list[str]:
    seen = evaluate(RECORD, **FLAGS | {"beta": 0.0}).breakdown
    values = seen.contribution
    loss = -float(values.sum() + (times - 1.0) * values[np.flatnonzero(seen.clip)[0]])
    expected = {"loss": loss, "gradient": by_row(seen.gradient)}
    return [*difference(expected, flags={"beta": 0.0}).causes]


def at_masked(value: float | None, times: float = 1.0) -> Numbers:
    """The right numbers with another one at a masked token, and at one that counts."""
    j, slopes = compute()
    slopes[2][1] = value  # type: ignore[call-overload]
    slopes[3][1] *= times
    return j, slopes


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
    seen = evaluate(RECORD | {"mask": MASK}, **FLAGS)
    slopes = iter(seen.breakdown.gradient.tolist())
    rows = [[next(slopes) if one else 0.0 for one in row] for row in MASK]
    rows[2][2] = 0.0
    found = difference({"gradient": rows}, mask=MASK)
    assert (found.response, found.token) == (2, 2)
    assert found.causes[0] == "1 of 8 tokens is dropped (gradient 0): token 2 of response 2"


def scaled(loss: float, gradient: float | None = None, **said: Any) -> list[str]:
    j, slopes = compute()
    expected: dict[str, Any] = {"loss": -loss * j}
    if gradient is not None:
        expected["gradient"] = [[gradient * slope for slope in row] for row in slopes]
    return [*difference(expected, hyperparameters=said, groups=[0, 0, 0, 1]).causes]


def chosen(**stages: str) -> list[str]:
    seen = evaluate(RECORD, stages=stages, **FLAGS)
    return [*difference({"objective": seen.objective, "gradient": seen.gradient}).causes]


def causes_of_loss(chosen: dict[str, str], **more: Any) -> list[str]:
    return [*difference({"loss": evaluate(RECORD, stages=chosen, **FLAGS).loss}, **more).causes]


def where(expected: dict[str, Any], **more: Any) -> list[str]:
    """Where a record differs and in which stages, then its causes."""
    found = difference(expected, **more)
    return [f"{found.pattern} [{', '.join(found.located)}]", *found.causes]


def noisy(at: Sequence[int]) -> list[str]:
    noise = np.random.default_rng(5).uniform(0.3, 1.0, 10)
    slopes = np.concatenate(compute()[1])
    return where({"gradient": by_row(slopes + noise * np.isin(np.arange(10), at))})


def added(factor: Callable[[int, int, float], float]) -> Rows:
    """The policy's gradients times a factor of position, length and A, and the KL's gradients."""
    terms = zip(A, compute(beta=0.0)[1], compute(a=[0.0] * 4)[1], strict=True)
    return [
        [x * factor(at, len(kl), a) + kl[at] for at, x in enumerate(policy)]
        for a, policy, kl in terms
    ]


def located_without_tokens() -> list[str]:
    row = {**RECORD, "mask": [[1, 1], [1], [1, 1, 1, 1], [0, 0, 0]]}
    again = evaluate({**row, "advantages": [1.37, -0.3, 0.21, -2.0]}, beta=0.0)
    expected = {"gradient": [*again.gradient[:3], [0.0] * 3]}
    found = verify([{**row, "expected": expected}], beta=0.0).records[0].first
    assert found is not None
    return [*found.located]


def baseline(rewards: list[float], advantages: list[float]) -> list[str]:
    record = {**RECORD, "rewards": rewards}
    seen = evaluate({**record, "advantages": advantages}, variant="dr")
    expected = {"objective": seen.objective, "gradient": seen.gradient}
    row = {**record, "advantages": None, "group_ids": [0] * 4, "expected": expected}
    first = verify([row], variant="dr").records[0].first
    return [] if first is None else [*first.causes]


def test_a_pair_that_does_not_explain_all_records_is_not_named() -> None:
    given = {**RECORD, "rewards": REWARDS}
    del given["advantages"]
    good, bad = compute(a=OTHER_EPS, beta=-BETA), compute(a=[a**3 for a in OTHER_EPS], beta=0.07)  # noqa: F405
    rows = [{**given, "id": n, "expected": expects(each)} for n, each in enumerate((good, good))]
    found = verify(rows, rtol=1e-8, **FLAGS)
    assert (found.explained, found.differing) == (2, 2)
    rows.append({**given, "id": 2, "expected": expects(bad)})
    assert all(not one.first.causes for one in verify(rows, rtol=1e-8, **FLAGS).records)


@pytest.mark.parametrize("name", ["penalties", "denominators", "tokens", "factors", "where"])
def test_causes_of_wrong_numbers(name: str) -> None:
    expressions(Path(__file__).parent / f"cases/verify/{name}.txt", globals())
