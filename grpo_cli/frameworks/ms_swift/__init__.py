"""ms-swift 4.6.0.

Its GRPOTrainer is on Hugging Face's Trainer, which divides by gradient_accumulation_steps.
"""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.ms_swift import advantage, aggregate, correction, kl, surrogate
from grpo_cli.frameworks.ms_swift.earlier import CHANGES, EARLIER
from grpo_cli.frameworks.ms_swift.rows import ROWS

FRAMEWORK = Framework(
    name="ms-swift",
    rows=ROWS,
    choices={
        "advantage": advantage.CHOICES,
        "surrogate": surrogate.CHOICES,
        "kl": kl.CHOICES,
        "correction": correction.CHOICES,
        "aggregate": aggregate.CHOICES,
    },
    earlier=EARLIER,
    changes=CHANGES,
    accumulation="mean",
)
