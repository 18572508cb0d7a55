"""slime."""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.slime import advantage, aggregate, kl
from grpo_cli.frameworks.slime.rows import ROWS
from grpo_cli.frameworks.slime.settings import read

FRAMEWORK = Framework(
    name="slime",
    rows=ROWS,
    choices={
        "advantage": advantage.CHOICES,
        "kl": kl.CHOICES,
        "aggregate": aggregate.CHOICES,
    },
    read=read,
)
