"""NeMo-RL.

Losses are divided by global_valid_toks or global_valid_seqs, over the step and all ranks:
nemo_rl/algorithms/loss/loss_functions.py.
"""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.nemo_rl import choices  # noqa: F401 - to register them
from grpo_cli.frameworks.nemo_rl.rows import ROWS

FRAMEWORK = Framework(name="nemo-rl", rows=ROWS, accumulation="whole step")
