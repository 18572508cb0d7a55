"""NeMo-RL.

Losses are divided by global_valid_toks or global_valid_seqs, over the step and all ranks:
nemo_rl/algorithms/loss/loss_functions.py.
"""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.nemo_rl import choices
from grpo_cli.frameworks.nemo_rl.rows import ROWS

FRAMEWORK = Framework(name="nemo-rl", choices=(choices,), rows=ROWS, accumulation="whole step")
