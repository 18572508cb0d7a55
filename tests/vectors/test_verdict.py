"""What the vectors' plugin says of an answer, and whether the oracle's are right."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from files import each

from grpo_cli.vectors import Case, Claims, Step, Tolerance, cases, judge
from grpo_cli.vectors.verdict import answer
from vectors.oracle.objective import expected

# ---- what the vectors' plugin says of an answer: right, wrong, refused, split over ranks ---------


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


# ---- the oracle against numbers printed elsewhere ------------------------------------------------


def columns(
    new: list[list[float]], groups: list[int] | None = None, **more: list[Any]
) -> dict[str, Any]:
    """An input: one prompt unless ``groups`` says otherwise, every token counts."""
    tokens = {
        f"log_probs_{name}": more.pop(name) for name in ("old", "ref", "rollout") if name in more
    }
    mask = [[1] * len(row) for row in new]
    return {
        "log_probs_new": new,
        **tokens,
        **more,
        "mask": mask,
        "group_ids": groups or [0] * len(new),
    }


# trl 1.10.0.dev0 executed on this batch in float64: two prompts of two responses
TRL = columns(
    [[-1.0, -0.5, -2.0, -0.1], [-0.3, -1.2], [-0.7, -0.9, -1.1], [-2.5]],
    old=[[-1.2, -0.5, -1.5, -0.6], [-0.4, -0.9], [-0.7, -1.4, -1.0], [-1.9]],
    ref=[[-1.1, -0.7, -1.9, -0.3], [-0.5, -1.0], [-0.9, -0.8, -1.3], [-2.0]],
    rollout=[[-1.0, -0.6, -1.6, -0.6], [-0.4, -0.8], [-0.7, -1.3, -1.2], [-1.0]],
    rewards=[1.0, 0.0, 0.25, 0.75],
    groups=[0, 0, 1, 1],
)
GROUP = {
    "advantage": "group-std",
    "std_ddof": 1,
    "std_eps": 1e-4,
    "surrogate": "clip",
    "epsilon_low": 0.2,
    "epsilon_high": 0.2,
}
MEAN, TOKENS = GROUP | {"aggregate": "response-mean"}, GROUP | {"aggregate": "token-mean"}
KL = {"kl": "k3", "beta": 0.1}


def loss(given: dict[str, Any], how: dict[str, Any]) -> Any:
    return expected(given, how, ("loss",))["loss"]


@each(
    ("how", "wanted"),
    [
        (MEAN, 0.1036773931),
        (MEAN | KL, 0.1085490505),
        (TOKENS, 0.0638400620),
        (TOKENS | KL, 0.0666296325),
        (GROUP | {"aggregate": "token-sum-norm", "max_completion_length": 4}, 0.0399000388),
        (MEAN | {"ratio": "sequence"}, 0.0790613075),
        (MEAN | {"surrogate": "sapo", "tau_pos": 1.0, "tau_neg": 1.05}, 0.0421900871),
        (
            TOKENS | {"surrogate": "cispo", "epsilon_low": 1.0, "epsilon_high": 4.0},
            0.0050846053,
        ),
        (GROUP | {"ratio": "sequence", "aggregate": "token-sum"}, 0.0854177686),
        (TOKENS | {"delta": 1.1}, 0.0462597845),
        (TOKENS | {"epsilon_high": 0.28}, 0.0566708181),
        (TOKENS | KL | {"kl_weight": "ratio"}, 0.0660504415),
        (MEAN | {"correction": "token-truncate", "is_high": 1.15}, 0.1554046804),
        (MEAN | {"correction": "token-mask", "is_high": 1.15}, 0.0941062536),
        (MEAN | {"correction": "sequence-truncate", "is_high": 1.05}, 0.1556781925),
        (MEAN | {"correction": "geometric-truncate", "is_high": 1.05}, 0.1601179291),
        (MEAN | {"correction": "sequence-mask", "is_high": 1.05}, -0.0641248644),
        (MEAN | {"correction": "geometric-mask", "is_high": 1.05}, 0.1592106602),
        (
            MEAN | {"surrogate": "gmpo", "epsilon_low": 0.4, "epsilon_high": 0.4},
            0.0836490703,
        ),
        (MEAN | {"ratio": "product", "advantage": "leave-one-out"}, 0.0225593210),
    ],
)
def test_trainers_printed_this(how: dict[str, Any], wanted: float) -> None:
    assert loss(TRL, how) == pytest.approx(wanted, abs=2e-10)


@pytest.mark.parametrize(
    ("choice", "how", "rewards", "wanted"),
    [
        ("group-std", {"std_eps": 1e-6}, [1, 0, 0, 0], [1.499997, -0.499999]),  # slime
        ("group-std", {"std_ddof": 0, "std_eps": 1e-8}, [1, 0, 0, 0], [1.732051, -0.57735]),
        ("leave-one-out-std", {"std_eps": 1e-6}, [1, 0, 0, 0], [1.0, -0.577349]),  # NeMo-RL
        ("leave-one-out-std", {"std_eps": 1e-6}, [0.2, 0.9, 0.5, 0.5], [-1.87638, 2.886735]),
        ("leave-one-out", {}, [1, 1, 0, 0], [2 / 3, 2 / 3]),
        ("max-rl", {}, [1, 0, 0, 0], [3.0, -1.0]),
        ("group-mean", {}, [0.2, 0.9, 0.5, 0.5], [-0.325, 0.375]),
    ],
)
def test_estimators_printed_this(
    choice: str, how: dict[str, Any], rewards: list[float], wanted: list[float]
) -> None:
    how = {"advantage": choice, "std_ddof": 1, "std_eps": 1e-4} | how
    given = columns([[-1.0]] * len(rewards), rewards=rewards)
    found = expected(given, how, ("advantages",))["advantages"]
    assert found[:2] == pytest.approx(wanted, abs=1e-6)


def test_dual_clip_by_hand() -> None:
    """Losses −0.5, 1 and 12: the last is 3·|A|, NeMo-RL's and SkyRL's example."""
    given = columns(
        [[-1.69315], [-1.0], [-0.69741]],
        old=[[-1.0], [-1.0], [-3.0]],
        advantages=[1.0, -1.0, -4.0],
    )
    how = {"surrogate": "clip", "epsilon_low": 0.2, "epsilon_high": 0.2, "dual_clip": 3.0}
    assert loss(given, how | {"aggregate": "sum"}) == pytest.approx(12.5, abs=1e-4)


def test_a_mean_of_means_is_not_the_mean() -> None:
    """100 tokens of 0.5 and 900 of 0.3 are 0.32 a token, not 0.4: here as 1 and 9 tokens of A."""
    given = columns([[-1.0], [-1.0] * 9], advantages=[-0.5, -0.3])
    how = {"surrogate": "unclipped"}
    assert loss(given, how | {"aggregate": "token-mean"}) == pytest.approx(0.32)
    assert loss(given, how | {"aggregate": "response-mean"}) == pytest.approx(0.4)


def test_gradient_by_hand() -> None:
    """ρ·A·w where the clip does not cut, else 0; β·(1 − e^(ref − new)) for k3."""
    given = columns([[-1.0, -1.0]], old=[[-1.0, -2.0]], ref=[[-2.0, -1.0]], advantages=[1.0])
    how = {"surrogate": "clip", "epsilon_low": 0.2, "epsilon_high": 0.2, "aggregate": "sum"}
    found = expected(given, how | {"kl": "k3", "beta": 0.5}, ("gradient",))["gradient"]
    assert found[0] == pytest.approx([-1 + 0.5 * (1 - 0.36787944117144233), 0.0])
