"""Tinker.

Losses are sums over tokens (metric loss:sum), and forward_backward calls add up until optim_step.
"""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.tinker import advantage, kl
from grpo_cli.frameworks.tinker.rows import ROWS

FRAMEWORK = Framework(
    name="tinker",
    rows=ROWS,
    choices={"advantage": advantage.CHOICES, "kl": kl.CHOICES},
    aliases={"kl": kl.ALIASES},
    accumulation="sum",
)
