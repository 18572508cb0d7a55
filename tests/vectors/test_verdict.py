"""What the vectors' plugin says of an answer: right, wrong, refused, split over ranks."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from files import expressions

from grpo_cli.vectors import Case, Claims, Step, Tolerance, Verdict, cases, judge
from grpo_cli.vectors.verdict import answer

NAN, INFINITE = math.nan, math.inf
CLAIMS = Claims(refuses={"reward-nan": "nan"}, metrics=["kl", "clip_fraction"])
PLAIN: Case = replace(
    next(iter(cases())),
    result="required",
    topic="reward-nan",
    tolerances={CLAIMS.dtype: Tolerance(0.01, 0.5)},
    split=[[[0, 1]]],
)


CONVENTION = replace(
    PLAIN,
    result="convention",
    topic="kl-clamp",
    conventions={"one": {"loss": 0.0}, "other": {"loss": 9.0}},
)


def said(verdict: Verdict) -> list[str]:
    return [*verdict.problems, *([f"as {verdict.signature}"] if verdict.signature else [])]


def answered(wanted: dict[str, Any], found: dict[str, Any]) -> list[str]:
    return said(judge(lambda _: found, replace(PLAIN, expected=wanted), CLAIMS))


def loss(found: float, **claimed: str) -> list[str]:
    conventions = {name.replace("_", "-"): one for name, one in claimed.items()}
    return said(
        judge(lambda _: {"loss": found}, CONVENTION, replace(CLAIMS, conventions=conventions))
    )


def test_an_answer_beside_what_is_asked_for() -> None:
    path = Path(__file__).with_name("verdicts.txt")
    expressions(path, vars(math) | globals(), by_hand=True)


def raising(_: Case) -> dict[str, Any]:
    raise ValueError("refused")


def test_what_has_to_be_refused() -> None:
    case = replace(PLAIN, result="invalid")
    for loss, right in ((NAN, True), (INFINITE, True), (0.5, False), (None, False)):
        (*said,) = judge(lambda _, loss=loss: {"loss": loss}, case, CLAIMS).problems
        wrong = [f"expected a loss that is not finite for reward-nan, got the loss {loss!r}"]
        assert said == ([] if right else wrong)
    by_error = replace(CLAIMS, refuses={"reward-nan": ValueError})
    assert judge(raising, case, by_error).problems == []
    said = judge(lambda _: {"loss": NAN}, case, by_error).problems
    assert said == ["expected ValueError for reward-nan, got the loss nan"]
    with pytest.raises(ValueError, match="refused"):
        judge(raising, case, CLAIMS)


def test_ranks_are_averaged_and_their_micro_batches_added() -> None:
    """Each returns its responses' numbers; the rows of the gradient stand in their own places."""
    columns = {"rewards": [1.0, 2.0, 4.0, 8.0]}
    step = Step(tokens=4, responses=4, groups=1, ranks=2, micro_batches=2)
    case = replace(PLAIN, input=columns, step=step, split=[[[3], [0]], [[2], [1]]])

    def compute(part: Case) -> dict[str, Any]:
        (reward,) = part.input["rewards"]
        return {"loss": reward, "gradient": [[reward, -reward]]}

    assert answer(compute, case) == {
        "loss": 7.5,
        "gradient": [[0.5, -0.5], [1.0, -1.0], [2.0, -2.0], [4.0, -4.0]],
    }
