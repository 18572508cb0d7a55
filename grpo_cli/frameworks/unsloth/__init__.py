"""Unsloth 2026.10.9.

Its GRPOTrainer is TRL's, and micro-batches are added up as there.
"""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.unsloth import choices
from grpo_cli.frameworks.unsloth.rows import CHANGES, EARLIER, ROWS

FRAMEWORK = Framework(
    name="unsloth",
    choices=(choices,),
    rows=ROWS,
    earlier=EARLIER,
    changes=CHANGES,
    accumulation="mean",
)
