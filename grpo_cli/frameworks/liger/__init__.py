"""Liger-Kernel 0.8.5."""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.liger import aggregate
from grpo_cli.frameworks.liger.rows import ROWS

FRAMEWORK = Framework(
    name="liger",
    rows=ROWS,
    choices={
        "aggregate": aggregate.CHOICES,
    },
)
