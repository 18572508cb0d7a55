"""Tinker.

Losses are sums over tokens (metric loss:sum), and forward_backward calls add up until optim_step.
"""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.tinker import choices
from grpo_cli.frameworks.tinker.rows import ROWS

FRAMEWORK = Framework(name="tinker", choices=(choices,), rows=ROWS, accumulation="sum")
