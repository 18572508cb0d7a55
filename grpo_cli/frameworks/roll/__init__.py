"""ROLL at commit 8eb27cc2.

Denominators span the global batch; apply_loss_scale, on by default, undoes the division by
micro-batches and ranks: roll/distributed/strategy/megatron_strategy.py, train_step.
"""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.roll import choices
from grpo_cli.frameworks.roll.rows import ROWS

FRAMEWORK = Framework(name="roll", choices=(choices,), rows=ROWS, accumulation="whole step")
