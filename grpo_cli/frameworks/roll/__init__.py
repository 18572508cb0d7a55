"""ROLL at commit 8eb27cc2."""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.roll import aggregate, surrogate
from grpo_cli.frameworks.roll.rows import ROWS

FRAMEWORK = Framework(
    name="roll",
    rows=ROWS,
    choices={
        "surrogate": surrogate.CHOICES,
        "aggregate": aggregate.CHOICES,
    },
    aliases={
        "aggregate": aggregate.ALIASES,
    },
)
