"""What verl's decoupled correction rejects is as if it were masked, in every loss."""

from __future__ import annotations

import numpy as np
import pytest

from grpo_cli import VARIANTS, evaluate

LOSSES = [
    name
    for name, row in VARIANTS.items()
    if name.startswith("verl/") and row.correction.choice.absent
]
RECORD = {
    "log_probs_new": [[-0.5, -1.0, -2.2, -0.7], [-0.25, -3.0, -1.5], [-0.3]],
    "log_probs_old": [[-0.9, -1.3, -1.9, -1.1], [-0.6, -3.2, -1.1], [-0.4]],
    "log_probs_rollout": [[-0.9, -2.3, -1.9, -1.0], [-0.6, -1.2, -1.1], [-2.4]],
    "log_probs_ref": [[-0.8, -1.2, -1.7, -1.0], [-0.5, -3.3, -1.3], [-0.6]],
    "entropies": [[0.5, 1.0, 0.3, 0.2], [0.4, 0.9, 0.8], [0.1]],
    "advantages": [-1.0, 1.5, 0.75],
}
KEPT = [[1, 0, 1, 1], [1, 0, 1], [0]]
"""The tokens whose π_old/π_rollout is within [0.5, 2]."""
HYPER = {"beta": 0.3, "entropy_coef": 0.1, "kl_cov_ratio": 0.4, "clip_cov_ratio": 1.0}
HYPER |= {"clip_cov_lb": 0.0}
REJECTS = {"rollout_is": None, "rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0"}


@pytest.mark.parametrize("variant", LOSSES)
def test_what_is_rejected_is_as_if_it_were_masked(variant: str) -> None:
    stages = {"correction": "verl/decoupled"}
    rejected = evaluate(RECORD | {"hyperparameters": HYPER | REJECTS}, variant, stages=stages)
    masked = evaluate(RECORD | {"hyperparameters": HYPER, "mask": KEPT}, variant)
    assert rejected.loss == pytest.approx(masked.loss, rel=1e-13)
    kept = np.concatenate([np.array(row, dtype=bool) for row in KEPT])
    gradient = np.concatenate([np.array(row) for row in rejected.gradient])
    assert not gradient[~kept].any()
    wanted = np.concatenate([np.array(row) for row in masked.gradient])
    np.testing.assert_allclose(gradient[kept], wanted, rtol=1e-13)


def test_all_rejected_is_no_loss() -> None:
    rejects = REJECTS | {"rollout_rs_threshold": "0.999999_1.000001"}
    apart = [[x - 0.5 for x in row] for row in RECORD["log_probs_old"]]
    record = RECORD | {"log_probs_rollout": apart, "hyperparameters": rejects}
    for variant in LOSSES:
        assert evaluate(record, variant, stages={"correction": "verl/decoupled"}).loss == 0.0
