"""open-instruct's denominators."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import I64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Weights


def constant(lengths: I64, *, loss_denominator: float) -> Weights:
    """open-instruct's ``--loss_denominator N``: the sum over all tokens, over a constant."""
    return Weights(np.ones(len(lengths)), None, loss_denominator, "loss_denominator")


CHOICES = {"open-instruct/constant": Choice(constant, total=True)}
