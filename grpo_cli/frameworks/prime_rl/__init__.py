"""prime-rl.

Sums over tokens are divided by rl_scale, the tokens of the step on all ranks:
src/prime_rl/trainer/rl/train.py.
"""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.prime_rl import choices
from grpo_cli.frameworks.prime_rl.rows import CHANGES, EARLIER, ROWS
from grpo_cli.frameworks.prime_rl.settings import read

FRAMEWORK = Framework(
    name="prime-rl",
    choices=(choices,),
    rows=ROWS,
    earlier=EARLIER,
    changes=CHANGES,
    read=read,
    accumulation="whole step",
)
