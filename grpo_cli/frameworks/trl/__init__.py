"""TRL 1.16.0."""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.trl import advantage, aggregate, correction, surrogate, vespo
from grpo_cli.frameworks.trl.earlier import CHANGES, EARLIER
from grpo_cli.frameworks.trl.rows import ROWS
from grpo_cli.frameworks.trl.settings import read

FRAMEWORK = Framework(
    name="trl",
    rows=ROWS,
    choices={
        "advantage": advantage.CHOICES,
        "surrogate": {**surrogate.CHOICES, **vespo.CHOICES},
        "correction": correction.CHOICES,
        "aggregate": aggregate.CHOICES,
    },
    aliases={
        "aggregate": aggregate.ALIASES,
    },
    earlier=EARLIER,
    changes=CHANGES,
    read=read,
)
