"""What the plain loss claims."""

from __future__ import annotations

from typing import Any

from grpo_cli.vectors import Claims
from grpo_cli.vectors.claims import OPTIONS

SOFT = ["vespo", "dppo-tv", "dppo-kl", "kl-cov", "clip-cov"]
CLAIMS: dict[str, Any] = {
    "advantage": [
        "given",
        "group-mean",
        "group-std",
        "batch-std",
        "leave-one-out",
        "leave-one-out-std",
    ],
    "ratio": ["token", "sequence", "sequence-token", "product"],
    "surrogate": ["clip", "unclipped", "reinforce", "cispo", "sapo", "gmpo", *SOFT],
    "kl": ["none", "k1", "k2", "k3", "abs", "k1-in-reward"],
    "correction": [
        "none",
        "token-truncate",
        "token-mask",
        "sequence-truncate",
        "sequence-mask",
        "geometric-truncate",
        "geometric-mask",
        "off-policy-mask",
    ],
    "aggregate": [
        "token-mean",
        "response-mean",
        "token-sum",
        "token-sum-norm",
        "prompt-mean",
        "sum",
        "bnpo",
    ],
    "split": ["none", "micro-batches", "ranks", "ranks and micro-batches"],
    "options": list(OPTIONS),
    "metrics": [
        "kl",
        "clip_fraction_low",
        "clip_fraction_high",
        "clip_fraction",
        "dual_clip_fraction",
        "ratio_mean",
        "ppo_kl",
        "rollout_kl",
        "rollout_k3",
    ],
    "refuses": {"log-prob-nan": "nan"},
    "conventions": {
        "empty-response": "counted",
        "no-tokens": "0",
        "singleton-group": "0",
        "masked-response": "votes",
        "rejected-tokens": "counted",
        "correction-on-kl": "no",
        "kl-weight-level": "the token's ratio",
        "kl-clamp": "none",
        "ratio-clamp": "none",
        "kl-overflow": "inf",
        "clip-fraction": "of the tokens",
        "entropy-aggregate": "as the policy",
    },
}


def claims(dtype: str = "float64") -> Claims:
    return Claims(**CLAIMS, dtype=dtype)
