"""The oracle against numbers that were printed elsewhere: papers' arithmetic, threads, trainers."""

from __future__ import annotations

from typing import Any

import pytest
from files import each

from vectors.oracle.objective import expected


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
