"""What frameworks log where it is not what its name says; the counts are by hand."""

from __future__ import annotations

import math

import pytest
from judged import metric

from grpo_cli import evaluate

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
    found = {name: metric(f"clip_ratio/{name}", breakdown) for name in ("high_mean", "low_mean")}
    assert found == {"high_mean": 0.25, "low_mean": 0.25}
    assert metric("clip_ratio/region_mean", breakdown) == 0.5
    assert metric("clip_ratio/high_max", breakdown) == 1.0


def test_trl_counts_nothing_above_where_delta_is_within_the_window() -> None:
    """ρ is cut to δ before it is compared with 1 + ε: 1.3 and 2.0 become 1.1."""
    breakdown = evaluate(RECORD, "trl/grpo", delta=1.1).breakdown
    assert metric("clip_ratio/high_mean", breakdown) == 0.0
    assert metric("clip_ratio/region_mean", breakdown) == 0.25


MASKED = RECORD | {"mask": [[1], [1], [1], [0]]}
"""The last response, of A > 0, has no token left."""


@pytest.mark.parametrize(
    ("variant", "wanted"),
    [
        ("trl/gspo", {"high_mean": 1 / 4, "low_mean": 1 / 4, "low_min": 0.0, "high_max": 1.0}),
        ("trl/rloo", {"high_mean": 1 / 4, "low_mean": 1 / 4, "region_mean": 1 / 2}),
        ("trl/grpo", {"high_mean": 1 / 3, "low_mean": 1 / 3, "region_mean": 2 / 3}),
    ],
)
def test_trl_counts_responses_without_tokens_where_they_have_one_ratio(
    variant: str, wanted: dict[str, float]
) -> None:
    breakdown = evaluate(MASKED, variant, epsilon=0.2, beta=0.0).breakdown
    assert {name: metric(f"clip_ratio/{name}", breakdown) for name in wanted} == wanted


def test_a_least_share_is_of_responses_without_tokens_too_where_they_have_one_ratio() -> None:
    low = {**MASKED, "log_probs_new": [[-2.0]] * 4, "advantages": [-1.0] * 4}
    sequence, token = (evaluate(low, row).breakdown for row in ("trl/gspo", "trl/grpo"))
    assert metric("clip_ratio/low_min", sequence) == 0.0
    assert metric("clip_ratio/low_min", token) == 1.0


def test_cispo_counts_caps_of_positive_advantages() -> None:
    """ρ = 1 of a response without tokens is above the cap, unless that is 1 or more."""
    for cap, level, wanted in [
        (0.2, "token", 1 / 3),
        (0.2, "sequence", 2 / 4),
        (1.2, "sequence", 1 / 4),
        (5.0, "token", 0.0),
    ]:
        found = evaluate(MASKED, "trl/cispo", epsilon_high=cap, stages={"ratio": level})
        assert metric("cispo_clip_ratio", found.breakdown) == pytest.approx(wanted)
    assert metric("cispo_clip_ratio", evaluate(RECORD, "trl/grpo").breakdown) is None


@pytest.mark.parametrize(("loss", "sign"), [("vanilla", -1.0), ("kl_cov", None)])
def test_verls_ppo_kl_is_absolute_in_kl_cov(loss: str, sign: float | None) -> None:
    logs = [math.log(ratio) for ratio in RATIOS]
    breakdown = evaluate(RECORD, f"verl/{loss}").breakdown
    wanted = [abs(one) if sign is None else sign * one for one in logs]
    assert metric("actor/ppo_kl", breakdown) == pytest.approx(sum(wanted) / 4)
