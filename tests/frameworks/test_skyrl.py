"""What SkyRL's losses returned that tests/golden/others.json has no case of."""

from __future__ import annotations

from typing import Any

import pytest

from grpo_cli import VARIANTS, evaluate

# Executed from the sources at SkyRL a9564572 (torch 2.13, CPU) on one small batch. SkyRL
# exponentiates in float32, so these agree to 1e-7.


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


def test_every_row_is_marked_as_it_was_checked() -> None:
    for name, row in VARIANTS.items():
        if name.startswith(("skyrl/", "roll/")):
            assert row.checked in ("executed", "golden" if name in SKYRL else "read"), name
