"""Unsloth 2026.8.13."""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.unsloth import aggregate
from grpo_cli.frameworks.unsloth.rows import ROWS

FRAMEWORK = Framework(
    name="unsloth",
    rows=ROWS,
    choices={
        "aggregate": aggregate.CHOICES,
    },
)
