"""Straight-through estimators: the value of one estimator, the gradient of k2."""

from __future__ import annotations

from grpo_cli.frameworks.verl.kl import straight_through
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.kl.estimate import absolute, k1, k3
from grpo_cli.objective.kl.reward import in_reward

_FREE = {"kl_input_clamp": None, "kl_output_clamp": None}

CHOICES = {
    "k1+": Choice(straight_through(k1), _FREE),
    "abs+": Choice(straight_through(absolute), _FREE),
    "k3+": Choice(straight_through(k3), _FREE),
    "abs-in-reward": Choice(in_reward(absolute), _FREE),
}
ALIASES = {"kl+": "k1+", "low_var_kl+": "k3+"}
