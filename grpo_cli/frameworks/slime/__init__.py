"""slime.

Denominators span the step's samples on all ranks, or its tokens with calculate_per_token_loss:
slime/backends/megatron_utils/loss.py, loss_function.
"""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.slime import choices
from grpo_cli.frameworks.slime.rows import ROWS
from grpo_cli.frameworks.slime.settings import read

FRAMEWORK = Framework(
    name="slime", choices=(choices,), rows=ROWS, read=read, accumulation="whole step"
)
