"""NeMo-RL."""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.nemo_rl import advantage, aggregate, kl, reinforce_plus_plus
from grpo_cli.frameworks.nemo_rl.rows import ROWS

FRAMEWORK = Framework(
    name="nemo-rl",
    rows=ROWS,
    choices={
        "advantage": {**advantage.CHOICES, **reinforce_plus_plus.CHOICES},
        "kl": kl.CHOICES,
        "aggregate": aggregate.CHOICES,
    },
)
