"""TRL 1.16.0.

Hugging Face's Trainer divides by gradient_accumulation_steps what compute_loss returns, unless the
trainer has done so (GRPOTrainer has): transformers/trainer.py, training_step. The loss that it
logs is the sum of these, averaged over processes.
"""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.trl import advantage, aggregate, correction, surrogate, vespo
from grpo_cli.frameworks.trl.earlier import CHANGES, EARLIER
from grpo_cli.frameworks.trl.rows import ROWS
from grpo_cli.frameworks.trl.settings import read

FRAMEWORK = Framework(
    name="trl",
    rows=ROWS,
    choices={
        "advantage": advantage.CHOICES,
        "surrogate": {**surrogate.CHOICES, **vespo.CHOICES},
        "correction": correction.CHOICES,
        "aggregate": aggregate.CHOICES,
    },
    aliases={
        "aggregate": aggregate.ALIASES,
    },
    earlier=EARLIER,
    changes=CHANGES,
    read=read,
    accumulation="mean",
)
