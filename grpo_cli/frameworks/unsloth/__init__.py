"""Unsloth 2026.10.9.

Its GRPOTrainer is TRL's, and micro-batches are added up as there.
"""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.unsloth import kl
from grpo_cli.frameworks.unsloth.earlier import CHANGES, EARLIER
from grpo_cli.frameworks.unsloth.rows import ROWS

FRAMEWORK = Framework(
    name="unsloth",
    rows=ROWS,
    choices={
        "kl": kl.CHOICES,
    },
    earlier=EARLIER,
    changes=CHANGES,
    accumulation="mean",
)
