"""SkyRL's, ROLL's and verl's losses on one small batch: numbers that their own functions returned.

Executed from the sources at SkyRL a9564572 and ROLL 8eb27cc2 (torch 2.13, CPU). SkyRL exponentiates
in float32 and ROLL adds 1e-8 to its counts, so these agree to 1e-7; the verl numbers are of the
same functions that tests/parity runs. ROLL's sum-norm has the padded width 3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from grpo_cli import VARIANTS, evaluate

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
