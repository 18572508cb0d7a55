"""Liger-Kernel 0.8.5.

TRL divides what the kernel returns by gradient_accumulation_steps, whatever the loss_type:
trl/trainer/grpo_trainer.py, compute_liger_loss.
"""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.liger import choices
from grpo_cli.frameworks.liger.rows import ROWS

FRAMEWORK = Framework(name="liger", choices=(choices,), rows=ROWS, accumulation="mean")
