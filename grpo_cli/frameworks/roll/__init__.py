"""ROLL at commit 8eb27cc2."""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.roll import aggregate, correction, segments, surrogate
from grpo_cli.frameworks.roll.rows import ROWS

FRAMEWORK = Framework(
    name="roll",
    rows=ROWS,
    choices={
        "ratio": segments.CHOICES,
        "surrogate": surrogate.CHOICES,
        "correction": correction.CHOICES,
        "aggregate": aggregate.CHOICES,
    },
    aliases={
        "aggregate": aggregate.ALIASES,
        "correction": correction.ALIASES,
    },
)
