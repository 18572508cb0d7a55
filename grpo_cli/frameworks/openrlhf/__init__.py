"""OpenRLHF.

Denominators span an optimiser step and all ranks: openrlhf/utils/loss_utils.py,
iter_grad_accum_global_norm.
"""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.openrlhf import advantage, aggregate, correction, kl
from grpo_cli.frameworks.openrlhf.rows import ROWS

FRAMEWORK = Framework(
    name="openrlhf",
    rows=ROWS,
    choices={
        "advantage": advantage.CHOICES,
        "kl": kl.CHOICES,
        "correction": correction.CHOICES,
        "aggregate": aggregate.CHOICES,
    },
    aliases={
        "advantage": advantage.ALIASES,
        "aggregate": aggregate.ALIASES,
    },
    accumulation="whole step",
)
