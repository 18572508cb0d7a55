"""grpo's own evaluator against the vectors, through ``from grpo_cli import evaluate``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from grpo_cli import GrpoError, evaluate
from grpo_cli.vectors import Case, Claims, NotClaimedError, Verdict, cases, claimed, judge
from grpo_cli.vectors.claims import vocabulary

NAMES = {
    "leave-one-out-std": "nemo-rl/grpo",
    "token-whiten": "verl/reinforce_plus_plus_baseline",
    "bnpo": "token-mean",
}
"""The choices that have another name here; the second adds 1e-8 to the variance."""

NOT_OURS = ("variance_eps", "is_batch_normalize")

CLAIMS = Claims(
    **{
        stage: vocabulary()[stage]
        for stage in (
            "advantage",
            "ratio",
            "surrogate",
            "kl",
            "correction",
            "aggregate",
            "split",
            "options",
        )
    },
    metrics=[
        "kl",
        "clip_fraction_low",
        "clip_fraction_high",
        "clip_fraction",
        "ratio_mean",
        "dead_groups",
    ],
    refuses=dict.fromkeys(vocabulary()["refuses"], GrpoError),
    conventions={
        "empty-response": "counted",
        "no-tokens": "0",
        "singleton-group": "0",
        "masked-response": "votes",
        "rejected-tokens": "counted",
        "correction-on-kl": "no",
        "kl-weight-level": "the sequence's ratio",
        "kl-clamp": "none",
        "ratio-clamp": "none",
        "clip-fraction": "of the tokens",
        "entropy-aggregate": "as the policy",
        "dead-groups": "of the prompts",
    },
)
NOT_CLAIMED = {
    "metrics dual_clip_fraction": 1,
    "metrics ppo_kl": 3,
    "metrics rollout_kl": 2,
    "metrics rollout_k3": 2,
    "a loss that is not finite is refused": 1,
}
"""Metrics that ``evaluate`` has not, and the one convention that has no number to compare."""


def compute(case: Case) -> dict[str, Any]:
    if case.topic == "kl-overflow":
        raise NotClaimedError("a loss that is not finite is refused")
    how = {k: v for k, v in case.hyperparameters.items() if k not in NOT_OURS}
    stages = {stage: NAMES.get(name, name) for stage, name in case.choices.items()}
    stages.pop("split", None)
    if "is_batch_normalize" in case.hyperparameters:
        how |= normalised(stages, how)
    bonus = {name: how.pop(name) for name in ("entropy_coef",) if name in how}
    if case.choices.get("surrogate") == "clip-cov":
        how["clip_cov_seed"] = 0  # the case has no more candidates than are drawn
    record = {**case.input, "hyperparameters": how | {"std_min": 0.0}}
    found = evaluate(record, "grpo", stages=stages, **bonus)
    advantages = found.breakdown.response_advantage
    scale = share(case) * case.step.ranks
    return {
        "loss": found.loss * scale,
        "gradient": [
            placed(-row * scale, mask)
            for row, mask in zip(found.gradient, case.input["mask"], strict=True)
        ],
        "advantages": None if advantages is None else advantages,
        "metrics": {**found.total, "dead_groups": found.total["dead_groups"] / case.step.groups},
    }


def normalised(stages: dict[str, str], how: dict[str, Any]) -> dict[str, Any]:
    """By verl's names, which alone have it."""
    level, _, kind = stages["correction"].partition("-")
    stages["correction"] = "verl/decoupled"
    bounds = how["is_high"] if kind == "truncate" else f"{how['is_low']}_{how['is_high']}"
    return {
        "rollout_is": level,
        "rollout_is_threshold": bounds,
        "rollout_is_batch_normalize": "true",
    }


def share(case: Case) -> float:
    """The part of the step's denominator that is in this micro-batch."""
    counts = {
        "token-mean": (int(np.sum(np.concatenate(case.input["mask"]))), case.step.tokens),
        "prompt-mean": (len(set(case.input["group_ids"])), case.step.groups),
        "sum": (1, 1),
        "bnpo": (1, case.step.ranks * case.step.micro_batches),
    }
    rows = (len(case.input["mask"]), case.step.responses)
    inside, whole = counts.get(case.choices.get("aggregate", "sum"), rows)
    return inside / whole if whole else 1.0


def placed(row: Any, mask: list[int]) -> list[float]:
    """One number per token; what the mask removes has no slope."""
    slopes = iter(row.tolist())
    return [next(slopes) if counts else 0.0 for counts in mask]


def outcomes() -> Iterator[tuple[Case, Verdict | str]]:
    """The verdict on each case, or why it is not claimed."""
    for case in cases():
        try:
            yield case, judge(compute, claimed(case, CLAIMS), CLAIMS)
        except NotClaimedError as reason:
            yield case, str(reason)


def test_what_is_claimed_is_right() -> None:
    verdicts = [(case, verdict) for case, verdict in outcomes() if isinstance(verdict, Verdict)]
    assert {case.id: verdict.problems for case, verdict in verdicts if verdict.problems} == {}
    assert len(verdicts) == len(cases()) - sum(NOT_CLAIMED.values())


def test_what_is_not_claimed_is_what_is_listed() -> None:
    assert Counter(verdict for _, verdict in outcomes() if isinstance(verdict, str)) == NOT_CLAIMED
