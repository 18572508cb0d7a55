"""The numbers in the frameworks' own unit tests.

OpenRLHF 3c3be62, slime 624b824, NeMo-RL 7ea279a (to the digits that its comments give), AReaL
4aef98d and open-instruct e6c3044.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from grpo_cli import evaluate


def flat(
    new: list[float], old: list[float], advantages: list[float], **more: Any
) -> dict[str, Any]:
    """One response with an advantage per token."""
    record = {"log_probs_new": [new], "log_probs_old": [old], "advantages": [advantages]}
    return record | {name: [values] for name, values in more.items()}


def logs(ratios: list[float], old: float = -3.0) -> list[float]:
    return [old + math.log(r) for r in ratios]


def test_openrlhf_token_mean_window() -> None:
    # tests/test_loss_aggregation.py: losses [1, 2 | 3, 4, 5, 6, 7], mean 28/7
    record = {
        "log_probs_new": [[-1.0] * 2, [-1.0] * 5],
        "advantages": [[-1.0, -2.0], [-3.0, -4.0, -5.0, -6.0, -7.0]],
    }
    assert evaluate(record, "openrlhf/ppo").loss == pytest.approx(28 / 7, rel=1e-12)


def test_openrlhf_leaves_empty_responses_out() -> None:
    record = {"log_probs_new": [[-1.0], []], "advantages": [-1.0, 5.0]}
    assert evaluate(record, "openrlhf/gspo").loss == 1.0 / (1.0 + 1e-8)
    assert evaluate(record, "nemo-rl/gspo", beta=0.0).loss == 0.5 / (1.0 + 1e-8)


def test_slime_policy_loss() -> None:
    # tests/test_policy_loss.py
    record = flat(logs([2.0, 2.0, 0.5]), [-3.0] * 3, [2.0, -2.0, 2.0])
    found = evaluate(record, "slime/grpo", dual_clip=1.5).breakdown
    assert (-found.surrogate).tolist() == pytest.approx([-2.4, 3.0, -1.0], rel=1e-12)


@pytest.mark.parametrize(
    ("ratios", "low", "high", "clamped"),
    [
        ([1.0, 1.14, 1.56, 0.4], 0.2, 0.28, [1.0, 1.14, 1.28, 0.8]),
        ([1.0, 3.0, 9.0, 0.4], 1.0, 4.0, [1.0, 3.0, 5.0, 0.4]),
    ],
)
def test_slime_cispo(ratios: list[float], low: float, high: float, clamped: list[float]) -> None:
    # tests/test_cispo_loss.py: loss = −clamped·A·log π_θ, gradient −clamped·A
    new, gains = [-0.7, -1.2, -0.4, -2.1], [1.0, -0.5, 2.0, -1.0]
    record = flat(new, [x - math.log(r) for x, r in zip(new, ratios, strict=True)], gains)
    found = evaluate(record, "slime/cispo", epsilon_low=low, epsilon_high=high).breakdown
    expected = [c * a * x for c, a, x in zip(clamped, gains, new, strict=True)]
    assert found.surrogate.tolist() == pytest.approx(expected, abs=1e-6)


NEMO: list[tuple[str, list[float], list[float], list[float], dict[str, Any], float]] = [
    # tests/unit/algorithms/test_loss_functions.py, its literals
    ("nemo-rl/grpo", [-1.69315, -1.0, -0.59453], [-1.0] * 3, [1.0, -1.0, 2.0], {}, -0.6333),
    (
        "nemo-rl/grpo",
        [-1.69315, -1.0, -0.69741],
        [-1.0, -1.0, -3.0],
        [1.0, -1.0, -4.0],
        {"dual_clip": 3.0},
        4.1667,
    ),
    ("nemo-rl/reinforce", [-0.5, -1.0, -1.5], [0.0] * 3, [1.0, -1.0, 2.0], {}, 0.8333),
    ("nemo-rl/gspo", [-1.69315, -1.0, -0.59453], [-1.0] * 3, [1.0, -1.0, 2.0], {}, -0.6057),
]


@pytest.mark.parametrize(("variant", "new", "old", "gains", "values", "loss"), NEMO)
def test_nemo_literals(
    variant: str,
    new: list[float],
    old: list[float],
    gains: list[float],
    values: dict[str, Any],
    loss: float,
) -> None:
    assert evaluate(flat(new, old, gains), variant, beta=0.0, **values).loss == pytest.approx(
        loss, abs=1e-3
    )


@pytest.mark.parametrize(
    ("variant", "stages", "values", "loss"),
    [
        ("nemo-rl/grpo-is", {}, {}, -0.2065),
        ("nemo-rl/grpo-is", {}, {"is_high": 0.8}, -0.4744),
        ("nemo-rl/gspo-is", {}, {}, -0.4959),
        ("nemo-rl/gspo-is", {}, {"is_high": 0.8}, -0.4846),
    ],
)
def test_nemo_corrected_literals(
    variant: str, stages: dict[str, str], values: dict[str, Any], loss: float
) -> None:
    record = flat(
        [-1.69315, -1.0, -0.59453],
        [-1.0] * 3,
        [1.0, -1.0, 2.0],
        log_probs_rollout=[-0.5, -1.5, -0.8],
    )
    found = evaluate(record, variant, stages=stages, beta=0.0, **values)
    assert found.loss == pytest.approx(loss, abs=1e-3)


def test_nemo_gspo_literal_of_two() -> None:
    new, gains = [-1.69315, -1.0, -0.59453], [1.0, -1.0, 2.0]
    record = {
        "log_probs_new": [new, new],
        "log_probs_old": [[-1.0] * 3, [-2.0] * 3],
        "advantages": [gains, gains],
    }
    assert evaluate(record, "nemo-rl/gspo", beta=0.0).loss == pytest.approx(-0.4912, abs=1e-3)


def test_nemo_kl_literals() -> None:
    # log π_θ −1, reference 0, −15, −30, unclamped; then input clamp 2
    record = flat([-1.0] * 3, [-1.0] * 3, [0.0] * 3, log_probs_ref=[0.0, -15.0, -30.0])
    free = {"beta": 1.0, "kl_input_clamp": None, "kl_output_clamp": None}
    expected = {"k1": [-1.0, 14.0, 29.0], "k2": [0.5, 98.0, 420.5], "k3": [0.7183, 13.0, 28.0]}
    for kind, values in expected.items():
        found = evaluate(record, "nemo-rl/grpo", stages={"kl": f"nemo-rl/{kind}"}, **free)
        assert found.breakdown.kl.tolist() == pytest.approx(values, abs=1e-3)
    far = flat([-9.0], [-9.0], [0.0], log_probs_ref=[-1.0])
    clamped = evaluate(far, "nemo-rl/grpo", kl_input_clamp=2.0).breakdown
    assert clamped.kl.tolist() == pytest.approx([4.389056], abs=1e-6)
    assert clamped.gradient.tolist() == [0.0]


def test_nemo_kl_loss_literal() -> None:
    record = flat([0.0, -1.0, -2.0], [-1.0] * 3, [0.0] * 3, log_probs_ref=[-1.0] * 3)
    assert evaluate(record, "nemo-rl/grpo", beta=0.1).loss == pytest.approx(0.0362, abs=1e-4)


def test_areal_sapo_literal() -> None:
    # tests/test_functional.py: ratio 1, A = 1, τ = 1 → −2
    record = {"log_probs_new": [[-1.0]], "advantages": [1.0]}
    assert evaluate(record, "areal/sapo").loss == -2.0


def test_open_instruct_rho_literals() -> None:
    # tests/test_rl_utils.py: ρ and bounds 0.5 to 2, no clamp
    def weights(
        rho: list[list[float]], choice: str, gains: list[float], **values: Any
    ) -> list[float]:
        record = {
            "log_probs_new": [[-3.0] * len(row) for row in rho],
            "log_probs_rollout": [[-3.0 - math.log(r) for r in row] for row in rho],
            "advantages": gains,
        }
        stages = {"correction": choice}
        values = {"is_high": None, "beta": 0.0} | values
        found = evaluate(record, "open-instruct/grpo", stages=stages, **values)
        return found.breakdown.correction.tolist()

    bounds = {"rho_mask_low": 0.5 - 1e-12, "rho_mask_high": 2.0 + 1e-12}  # they are inclusive
    found = weights([[0.25, 0.5, 1.0, 2.0, 4.0]], "open-instruct/rho", [1.0], **bounds)
    assert found == pytest.approx([0.0, 0.5, 1.0, 2.0, 0.0], rel=1e-12)
    rows = [[0.25, 1.0, 4.0], [4.0] * 3, [0.25] * 3]
    found = weights(rows, "open-instruct/rho-sequence", [1.0] * 3, **bounds)
    assert found == pytest.approx([1.0] * 3 + [0.0] * 6, rel=1e-12)
    found = weights(rows[:2], "open-instruct/rho-divergence", [1.0] * 2, rho_mask_high=2.0)
    assert found == pytest.approx([0.25, 1.0, 4.0, 0.0, 0.0, 0.0], rel=1e-12)


def test_clamps_that_only_extreme_tokens_meet() -> None:
    # OpenRLHF clamps the log ratio to ±20 before exp, open-instruct log π_θ − log π_ref to ±40;
    # Tinker's cispo caps the weight itself at 4 (by their formulas)
    far = flat([-1.0], [-31.0], [-1.0])
    assert evaluate(far, "openrlhf/ppo").loss == pytest.approx(math.exp(20.0), rel=1e-12)
    assert evaluate(far, "openrlhf/ppo").gradient[0].tolist() == [0.0]
    distant = flat([-50.0], [-50.0], [0.0], log_probs_ref=[-1.0], log_probs_rollout=[-50.0])
    found = evaluate(distant, "open-instruct/grpo")
    assert found.loss == pytest.approx(0.05 * (math.exp(40.0) - 41.0), rel=1e-12)
    assert found.gradient[0].tolist() == [0.0]
    capped = flat([-1.0, -1.0], [-1.0, -1.0], [1.0, 1.0], log_probs_rollout=[-9.0, -1.5])
    found = evaluate(capped, "tinker/cispo").breakdown
    assert found.gradient.tolist() == pytest.approx([4.0, math.exp(0.5)], rel=1e-12)
