"""What frameworks log where it is not what its name says; the counts are by hand."""

from __future__ import annotations

import math

import pytest

from grpo_cli import evaluate
from grpo_cli.commands.verify.quantities import METRICS

RATIOS = [1.3, 2.0, 0.7, 1.0]
RECORD = {
    "log_probs_new": [[math.log(ratio) - 1.0] for ratio in RATIOS],
    "log_probs_old": [[-1.0]] * 4,
    "advantages": [1.0, -1.0, -1.0, 1.0],
}


def test_trl_does_not_count_what_delta_bounds() -> None:
    """The second token's ratio is above δ and its A is negative: TRL asks for A > 0."""
    breakdown = evaluate(RECORD, "trl/grpo", delta=1.5).breakdown
    assert breakdown.clip.tolist() == [1, 1, -1, 0]
    found = {name: METRICS[f"clip_ratio/{name}"](breakdown) for name in ("high_mean", "low_mean")}
    assert found == {"high_mean": 0.25, "low_mean": 0.25}
    assert METRICS["clip_ratio/region_mean"](breakdown) == 0.5
    assert METRICS["clip_ratio/high_max"](breakdown) == 1.0


@pytest.mark.parametrize(("loss", "sign"), [("vanilla", -1.0), ("kl_cov", None)])
def test_verls_ppo_kl_is_absolute_in_kl_cov(loss: str, sign: float | None) -> None:
    logs = [math.log(ratio) for ratio in RATIOS]
    breakdown = evaluate(RECORD, f"verl/{loss}").breakdown
    wanted = [abs(one) if sign is None else sign * one for one in logs]
    assert METRICS["actor/ppo_kl"](breakdown) == pytest.approx(sum(wanted) / 4)
