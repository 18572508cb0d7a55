"""verl 0.9.1."""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.verl import advantage, aggregate, kl, ratio, surrogate
from grpo_cli.frameworks.verl.earlier import CHANGES, EARLIER
from grpo_cli.frameworks.verl.rows import ROWS
from grpo_cli.frameworks.verl.settings import read

FRAMEWORK = Framework(
    name="verl",
    rows=ROWS,
    choices={
        "advantage": advantage.CHOICES,
        "ratio": ratio.CHOICES,
        "surrogate": surrogate.CHOICES,
        "kl": kl.CHOICES,
        "aggregate": aggregate.CHOICES,
    },
    aliases={
        "advantage": advantage.ALIASES,
        "kl": kl.ALIASES,
    },
    earlier=EARLIER,
    changes=CHANGES,
    read=read,
)
