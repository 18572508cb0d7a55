"""What the vectors' plugin says of an answer: right, wrong, refused, split over ranks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from grpo_cli.vectors import Case, Claims, Step, Tolerance, cases, judge
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


@pytest.mark.parametrize(
    ("wanted", "found", "said"),
    [
        ({"loss": 100.0}, {"loss": 101.5}, []),  # 0.5 + 0.01·100
        ({"loss": -100.0}, {"loss": -98.5}, []),
        ({"loss": 100.0}, {"loss": 101.75}, ["loss: expected 100.0, got 101.75"]),
        ({"loss": 100.0}, {"loss": 98.25}, ["loss: expected 100.0, got 98.25"]),
        ({"loss": 0.0}, {"loss": None}, ["loss: the fixture returned none"]),
        ({"loss": 0.0}, {"loss": NAN}, ["loss: expected 0.0, got nan"]),
        ({"loss": NAN}, {"loss": NAN}, []),
        ({"loss": NAN}, {"loss": 0.0}, ["loss: expected nan, got 0.0"]),
        ({"loss": INFINITE}, {"loss": INFINITE}, []),
        ({"loss": INFINITE}, {"loss": -INFINITE}, ["loss: expected inf, got -inf"]),
        ({"loss": None}, {"loss": 7.0}, []),
        ({"loss": 1.0, "used_by": ["trl"]}, {"loss": 1.0}, []),
        ({"loss": 1.0}, {}, ["loss: the fixture returned none"]),
        # rows may be padded, with zeros
        ({"gradient": [[1.0, 2.0], [3.0]]}, {"gradient": [[1.0, 2.0], [3.0, 0.0]]}, []),
        (
            {"gradient": [[1.0, 2.0], [3.0]]},
            {"gradient": [[1.0, 9.0], [3.0, 1.0]]},
            ["gradient[0][1]: expected 2.0, got 9.0", "gradient[1][1]: expected 0.0, got 1.0"],
        ),
        (
            {"gradient": [[1.0, 2.0], [3.0]]},
            {"gradient": [[1.0], 3.0]},
            [
                "gradient[0]: expected 2 numbers, got [1.0]",
                "gradient[1]: expected 1 numbers, got 3.0",
            ],
        ),
        (
            {"metrics": {"kl": 1.0, "clip_fraction": 2.0, "ratio_mean": 9.0}},
            {"metrics": {"kl": 9.0}},
            ["kl: expected 1.0, got 9.0", "clip_fraction: the fixture returned none"],
        ),
    ],
)
def test_an_answer_beside_what_is_asked_for(
    wanted: dict[str, Any], found: dict[str, Any], said: list[str]
) -> None:
    assert judge(lambda _: found, replace(PLAIN, expected=wanted), CLAIMS)[:2] == (said, "")


CONVENTION = replace(
    PLAIN,
    result="convention",
    topic="kl-clamp",
    conventions={"one": {"loss": 0.0}, "other": {"loss": 9.0}},
)


@pytest.mark.parametrize(
    ("pinned", "loss", "said", "signature"),
    [
        ({}, 0.1, [], "one"),
        ({}, 9.1, [], "other"),
        (
            {},
            4.0,
            [
                "no convention for kl-clamp gives this answer",
                "one: loss: expected 0.0, got 4.0",
                "other: loss: expected 9.0, got 4.0",
            ],
            "",
        ),
        ({"kl-clamp": "other"}, 9.1, [], "other"),
        ({"kl-clamp": "other"}, 0.1, ["loss: expected 9.0, got 0.1"], ""),
        ({"kl-clamp": "x"}, 0.1, ["kl-clamp 'x' is claimed, but the case has 'one', 'other'"], ""),
    ],
)
def test_any_convention_or_the_one_that_is_claimed(
    pinned: dict[str, str], loss: float, said: list[str], signature: str
) -> None:
    claims = replace(CLAIMS, conventions=pinned)
    assert judge(lambda _: {"loss": loss}, CONVENTION, claims)[:2] == (said, signature)


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
