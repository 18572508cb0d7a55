"""OpenRLHF."""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.openrlhf import advantage, aggregate
from grpo_cli.frameworks.openrlhf.rows import ROWS

FRAMEWORK = Framework(
    name="openrlhf",
    rows=ROWS,
    choices={
        "advantage": advantage.CHOICES,
        "aggregate": aggregate.CHOICES,
    },
    aliases={
        "advantage": advantage.ALIASES,
    },
)
