"""TRL 1.16.0.

Hugging Face's Trainer divides by gradient_accumulation_steps what compute_loss returns, unless the
trainer has done so (GRPOTrainer has): transformers/trainer.py, training_step. The loss that it
logs is the sum of these, averaged over processes.
"""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.trl import aggregate, choices  # noqa: F401 - to register them
from grpo_cli.frameworks.trl.rows import CHANGES, EARLIER, ROWS
from grpo_cli.frameworks.trl.settings import read

FRAMEWORK = Framework(
    name="trl",
    rows=ROWS,
    earlier=EARLIER,
    changes=CHANGES,
    read=read,
    accumulation="mean",
)
