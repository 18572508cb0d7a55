"""Unsloth's GRPO loss: TRL's denominators and policy terms, and a KL of its own."""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.frameworks.trl.rows import ROWS as TRL
from grpo_cli.objective.row import Row, Use, use

_NOTE = (
    "The KL is clamped, its log ratio to ±20 and the weighed estimate to ±10, where TRL has no "
    "clamp; else the number is TRL's. use_bias_correction_kl is TRL's own setting, on by default "
    "since TRL 1.10 (else -p kl_weight=none). Its logged kl is the mean over responses of token "
    "means. Its rollout corrections, top_entropy_quantile and off-policy mask are not covered."
)


READS = frozenset(
    {
        *("epsilon_low", "epsilon_high", "delta", "tau_pos", "tau_neg", "beta", "kl_weight"),
        *("gradient_accumulation_steps", "num_items_in_batch", "num_processes"),
        *("steps_per_generation", "max_completion_length"),
    }
)
"""What grpo_compute_loss takes."""


def _unsloth(name: str) -> Row[Use]:
    row = TRL[f"trl/{name}"]
    return replace(
        row,
        title=row.title.replace("TRL GRPOTrainer", "Unsloth GRPO loss"),
        version="unsloth-zoo 2026.10.9",
        checked="executed",
        kl=use("unsloth/k3", beta=0.0),
        correction=use("none"),
        entropy=None,
        entropy_aggregate=None,
        reads=READS,
        note=_NOTE,
    )


_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "gspo")

ROWS = {f"unsloth/{name}": _unsloth(name) for name in _LOSSES}
