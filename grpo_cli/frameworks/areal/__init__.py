"""AReaL."""

from grpo_cli.frameworks.areal import advantage, aggregate, correction, kl, ratio, rejection
from grpo_cli.frameworks.areal.rows import ROWS
from grpo_cli.frameworks.framework import Framework

FRAMEWORK = Framework(
    name="areal",
    rows=ROWS,
    choices={
        "advantage": advantage.CHOICES,
        "ratio": ratio.CHOICES,
        "kl": kl.CHOICES,
        "correction": {**correction.CHOICES, **rejection.CHOICES},
        "aggregate": aggregate.CHOICES,
    },
)
