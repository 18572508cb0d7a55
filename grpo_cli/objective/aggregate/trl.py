"""TRL's denominators."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import I64
from grpo_cli.objective.aggregate.result import Weights, per_token
from grpo_cli.objective.choice import Choice


def trl_grpo(lengths: I64, *, gradient_accumulation_steps: int) -> Weights:
    """TRL's loss_type grpo: ``response-mean`` over a micro-batch, ÷ gradient_accumulation_steps."""
    of = "responses, each by its own tokens × gradient_accumulation_steps"
    return Weights(per_token(lengths), np.ones(len(lengths)), gradient_accumulation_steps, of)


def trl_bnpo(lengths: I64, *, gradient_accumulation_steps: int) -> Weights:
    """TRL's loss_type bnpo: ``token-mean`` over a micro-batch, ÷ gradient_accumulation_steps."""
    of = "tokens × gradient_accumulation_steps"
    return Weights(
        np.ones(len(lengths)), lengths.astype(np.float64), gradient_accumulation_steps, of
    )


def trl_dr_grpo(
    lengths: I64, *, max_completion_length: float, gradient_accumulation_steps: int
) -> Weights:
    """TRL's loss_type dr_grpo: ``token-sum-norm``, ÷ gradient_accumulation_steps."""
    of = "responses × max_completion_length × gradient_accumulation_steps"
    divisor = max_completion_length * gradient_accumulation_steps
    return Weights(np.ones(len(lengths)), np.ones(len(lengths)), divisor, of)


_ACCUMULATION = {"gradient_accumulation_steps": 1}

CHOICES = {
    "trl/grpo": Choice(trl_grpo, _ACCUMULATION),
    "trl/bnpo": Choice(trl_bnpo, _ACCUMULATION),
    "trl/dr_grpo": Choice(trl_dr_grpo, _ACCUMULATION),
}
ALIASES: dict[str, str] = {}
