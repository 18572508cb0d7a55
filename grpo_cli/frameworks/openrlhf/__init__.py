"""OpenRLHF.

Denominators span an optimiser step and all ranks: openrlhf/utils/loss_utils.py,
iter_grad_accum_global_norm.
"""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.openrlhf import choices
from grpo_cli.frameworks.openrlhf.rows import ROWS

FRAMEWORK = Framework(name="openrlhf", choices=(choices,), rows=ROWS, accumulation="whole step")
