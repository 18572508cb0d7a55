"""Numbers of SkyRL and ROLL, and of other frameworks by literals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from grpo_cli import VARIANTS, evaluate

# ---- SkyRL's, ROLL's and verl's losses on one small batch
# Executed from the sources at SkyRL a9564572 and ROLL 8eb27cc2 (torch 2.13, CPU). SkyRL
# exponentiates in float32 and ROLL adds 1e-8 to its counts, so these agree to 1e-7; the
# verl numbers are of the same functions that tests/parity runs. ROLL's sum-norm has the padded
# width 3.


RECORD: dict[str, Any] = {
    "log_probs_old": [[-1.0, -0.5, -2.0], [-0.7, -3.0, -0.2]],
    "log_probs_new": [[-0.6, -0.55, -2.9], [-0.9, -1.4, -0.2]],
    "log_probs_rollout": [[-1.1, -0.45, -2.05], [-0.6, -3.3, -0.2]],
    "log_probs_ref": [[-0.8, -0.6, -2.5], [-1.0, -2.0, -0.2]],
    "advantages": [1.2, -0.8],
    "mask": [[1, 1, 1], [1, 1, 0]],
}
NO_ROLLOUT = {key: value for key, value in RECORD.items() if key != "log_probs_rollout"}

SKYRL = {
    "skyrl/regular": (0.3096103354, 0.6427928305),
    "skyrl/dual_clip": (-0.0028748636, 0.2521863317),
    "skyrl/gspo": (0.0450076253, 0.3060067154),
    "skyrl/sapo": (-0.5297097774, -0.0764595717),
    "skyrl/cispo": (-0.6040189753, -1.0147560251),
    "skyrl/rollout_is": (0.1194385407, 0.0995321172),
    "skyrl/dppo": (0.8685334659, 1.2188920677),
}
"""token_mean, sequence_mean."""

SKYRL_NORM = {
    "skyrl/regular": 0.2580086128,
    "skyrl/dual_clip": -0.0023957197,
    "skyrl/gspo": 0.0375063544,
    "skyrl/sapo": -0.4414248145,
    "skyrl/cispo": -0.5033491460,
    "skyrl/rollout_is": 0.0995321172,
}
"""seq_mean_token_sum_norm with max_seq_len 3."""

ROLL = {
    "roll/ppo": (0.3096103282, 0.6427928154, 0.7740258166, 0.5160172136),
    "roll/dual_clip": (-0.2588748597, -0.0678136659, -0.6471871461, -0.4314580995),
    "roll/gspo": (0.0450076253, 0.3060067139, 0.1125190627, 0.0750127089),
}
"""token-mean, seq-mean-token-mean, seq-mean-token-sum, seq-mean-token-sum-norm."""

ROLL_PG = {
    "roll/vanilla": 0.3499999982,
    "roll/tis": 0.0330741036,
    "roll/cispo": 0.2886352353,
    "roll/kimi15": 0.3906041647,
}
"""seq-mean-token-mean."""


def loss(variant: str, aggregate: str, record: dict[str, Any] = RECORD, **more: float) -> float:
    """−J without the KL."""
    found = evaluate(record, variant, stages={"aggregate": aggregate}, **more)
    return -float(found.total["policy"])


@pytest.mark.parametrize("variant", SKYRL)
def test_skyrl(variant: str) -> None:
    for reduction, wanted in zip(("token_mean", "sequence_mean"), SKYRL[variant], strict=True):
        assert loss(variant, reduction) == pytest.approx(wanted, rel=1e-7, abs=1e-8)


@pytest.mark.parametrize("variant", SKYRL_NORM)
def test_skyrl_s_constant_length(variant: str) -> None:
    norm = loss(variant, "seq_mean_token_sum_norm", max_completion_length=3)
    assert norm == pytest.approx(SKYRL_NORM[variant], rel=1e-7, abs=1e-8)


def test_skyrl_s_dppo_is_anchored_on_old_without_the_engine_s_log_probs() -> None:
    assert loss("skyrl/dppo", "token_mean", NO_ROLLOUT) == pytest.approx(0.2395723963, rel=1e-7)
    assert loss("skyrl/dppo", "sequence_mean", NO_ROLLOUT) == pytest.approx(0.5844278812, rel=1e-7)


def test_skyrl_s_kl_is_a_mean_over_responses_whatever_the_reduction() -> None:
    for variant in ("skyrl/regular", "skyrl/importance_sampling"):
        assert evaluate(RECORD, variant).total["kl"] == pytest.approx(0.0570430758, rel=1e-8)
    by_tokens = evaluate(RECORD, "verl/vanilla", beta=0.1).total["kl"]
    assert by_tokens == pytest.approx(0.0530867859, rel=1e-8)


@pytest.mark.parametrize("variant", ROLL)
def test_roll(variant: str) -> None:
    modes = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum")
    for mode, wanted in zip(modes, ROLL[variant], strict=False):
        assert loss(variant, f"roll/{mode}") == pytest.approx(wanted, rel=2e-8, abs=2e-9)
    norm = loss(variant, "roll/seq-mean-token-sum-norm", response_length=3)
    assert norm == pytest.approx(ROLL[variant][3], rel=2e-8, abs=2e-9)


@pytest.mark.parametrize("variant", ROLL_PG)
def test_roll_s_pg_variants(variant: str) -> None:
    assert -evaluate(RECORD, variant).objective == pytest.approx(
        ROLL_PG[variant], rel=2e-8, abs=2e-9
    )


def test_roll_s_topr_asks_the_raw_reward() -> None:
    record = {key: value for key, value in RECORD.items() if key != "advantages"}
    stages = {"advantage": "group-mean"}
    zero_one = evaluate(record | {"rewards": [1.0, 0.0]}, "roll/topr", stages=stages)
    both_good = evaluate(record | {"rewards": [2.0, 1.0]}, "roll/topr", stages=stages)
    np.testing.assert_array_equal(zero_one.advantages[1], both_good.advantages[1])
    # by hand: A = ∓1/2, two responses, means of their tokens; only e^1.6 is capped to 1
    np.testing.assert_allclose(zero_one.gradient[1], [-0.125 * np.exp(-0.2), -0.125], rtol=1e-7)
    np.testing.assert_allclose(both_good.gradient[1], [-0.125, -0.125], rtol=1e-7)


def test_skyrl_s_maxrl() -> None:
    record = {
        "log_probs_new": [[-0.5]] * 8,
        "rewards": [1, 0, 0, 1, 0.5, 2, 2, -1],
        "group_ids": list("aaaaabbb"),
    }
    found = evaluate(record, "skyrl/regular", stages={"advantage": "skyrl/maxrl"}, beta=0.0)
    ours = np.concatenate(found.advantages)
    np.testing.assert_allclose(ours, [1, -1, -1, 1, 0, 1, 1, -2], rtol=2.1e-6, atol=1e-12)
    assert abs(ours[0]) < 1.0


# The rows of the same batch that tests/golden/verl.json has on other batches.
VERL = {
    "verl/vanilla": (-0.0028748597, 0.2521863317, -0.0071871493, -0.0023957164),
    "verl/dppo_tv": (-0.1665397048, -0.4679069293, -0.4163492619, -0.1387830873),
    "verl/dppo_kl": (-0.1665397048, -0.4679069293, -0.4163492619, -0.1387830873),
    "verl/gpg": (0.6040000000, 0.3499999996, 1.5100000000, 0.5033333333),
    "verl/kl_cov": (0.2405724007, 0.5852612086, 0.6014310019, 0.2004770006),
    "verl/clip_cov": (0.3096103282, 0.6427928146, 0.7740258204, 0.2580086068),
    "verl/dro": (0.6397250000, 0.3906041661, 1.5993125000, 0.5331041667),
    "verl/cispo": (0.4684650556, 0.2292637012, 1.1711626390, 0.3903875463),
}
VERL_OWN = {"verl/sapo": -0.0764595733, "verl/geo_mean": 0.3382206075}


@pytest.mark.parametrize("variant", VERL)
def test_verl(variant: str) -> None:
    modes = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
    for mode, wanted in zip(modes, VERL[variant], strict=True):
        more = {"response_length": 3} if mode.endswith("norm") else {}
        assert loss(variant, f"verl/{mode}", **more) == pytest.approx(wanted, rel=0, abs=6e-11)


@pytest.mark.parametrize("variant", VERL_OWN)
def test_verl_s_losses_with_their_own_mean(variant: str) -> None:
    found = -evaluate(RECORD, variant).objective
    assert found == pytest.approx(VERL_OWN[variant], rel=0, abs=6e-11)


def test_every_row_is_marked_as_it_was_checked() -> None:
    golden = {*SKYRL, *ROLL, *ROLL_PG}
    for name, row in VARIANTS.items():
        if name.startswith(("skyrl/", "roll/")):
            assert row.checked in ("executed", "golden" if name in golden else "read"), name


# ---- the numbers in the frameworks' own unit tests -----------------------------------------------
# OpenRLHF 3c3be62, slime 624b824, NeMo-RL 7ea279a (to the digits that its comments give), AReaL
# 4aef98d and open-instruct e6c3044.


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
