"""What TRL 1.16.0 and verl 0.9.1 compute, by the names of the vectors."""

from __future__ import annotations

import numpy as np

from grpo_cli.vectors import Case, Claims

from ..batches import F64, Ragged

TRL = Claims(
    surrogate=["clip", "cispo", "sapo", "gmpo", "vespo"],
    aggregate=["token-mean", "response-mean", "token-sum", "token-sum-norm", "bnpo"],
    advantage=[
        "given",
        "group-mean",
        "group-std",
        "batch-std",
        "leave-one-out",
        "decoupled",
    ],
    ratio=["token", "sequence", "product"],
    kl=["none", "k3", "k1-in-reward"],
    correction=[
        "none",
        "token-truncate",
        "token-mask",
        "sequence-truncate",
        "sequence-mask",
        "off-policy-mask",
    ],
    split=["none", "micro-batches", "ranks", "ranks and micro-batches"],
    options=["delta", "kl_weight", "entropy_coef"],
    metrics=["kl", "clip_fraction_low", "clip_fraction_high", "clip_fraction"],
    refuses={"log-prob-nan": "nan"},
    conventions={
        "empty-response": "counted",
        "no-tokens": "0",
        "masked-response": "votes",
        "rejected-tokens": "counted",
        "correction-on-kl": "no",
        "kl-weight-level": "the sequence's ratio",
        "kl-clamp": "none",
        "ratio-clamp": "none",
        "kl-overflow": "inf",
        "clip-fraction": "of the responses",
        "entropy-aggregate": "over the tokens",
    },
)

VERL = Claims(
    surrogate=[
        *("clip", "cispo", "sapo", "reinforce", "gmpo"),
        *("dppo-tv", "dppo-kl", "kl-cov", "clip-cov"),
    ],
    aggregate=["token-mean", "response-mean", "token-sum", "token-sum-norm", "sum"],
    advantage=[
        "given",
        "group-mean",
        "group-std",
        "leave-one-out",
        "length-weighted",
        "pass-at-k",
        "token-whiten",
    ],
    ratio=["token", "sequence-token"],
    kl=["none", "k1", "k2", "k3", "abs", "k1+", "abs+", "k3+", "k1-in-reward"],
    correction=["none", "token-truncate", "token-mask", "sequence-truncate", "sequence-mask"],
    split=["none", "micro-batches", "ranks", "ranks and micro-batches"],
    options=[
        *("dual_clip", "kl_input_clamp", "kl_output_clamp"),
        *("entropy_coef", "is_batch_normalize"),
    ],
    metrics=["clip_fraction", "dual_clip_fraction", "ppo_kl", "rollout_kl", "rollout_k3"],
    refuses={"log-prob-nan": "nan", "dual-clip-below-1": AssertionError},
    conventions={
        "empty-response": "left out",
        "no-tokens": "nan",
        "singleton-group": "its reward",
        "masked-response": "votes",
        "rejected-tokens": "counted",
        "correction-on-kl": "no",
        "kl-clamp": "10",
        "ratio-clamp": "20",
        "kl-overflow": "10",
        "clip-fraction": "of the tokens",
        "entropy-aggregate": "as the policy",
    },
)


COLUMNS = ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout")


def ragged(case: Case) -> Ragged:
    """The case's columns; what it has not is filled with the current log-probs."""
    given = case.input
    entropies = given.get("entropies", [[0.0] * len(row) for row in given["mask"]])
    columns = {name: rows_of(given.get(name, given["log_probs_new"])) for name in COLUMNS}
    return Ragged(
        columns={**columns, "entropies": rows_of(entropies)},
        mask=[np.array(row, dtype=np.int64) for row in given["mask"]],
        groups=np.array(given["group_ids"]),
        rewards=np.array(given.get("rewards", [0.0] * case.step.responses)),
        advantages=np.array(given.get("advantages", [0.0] * len(given["mask"]))),
    )


def rows_of(column: list[list[float]]) -> list[F64]:
    return [np.array(row, dtype=np.float64) for row in column]
