"""prime-rl.

Sums over tokens are divided by rl_scale, the tokens of the step on all ranks:
src/prime_rl/trainer/rl/train.py.
"""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.prime_rl import advantage, surrogate
from grpo_cli.frameworks.prime_rl.earlier import CHANGES, EARLIER
from grpo_cli.frameworks.prime_rl.rows import ROWS
from grpo_cli.frameworks.prime_rl.settings import read

FRAMEWORK = Framework(
    name="prime-rl",
    rows=ROWS,
    choices={
        "advantage": advantage.CHOICES,
        "surrogate": surrogate.CHOICES,
    },
    earlier=EARLIER,
    changes=CHANGES,
    read=read,
    accumulation="whole step",
)
