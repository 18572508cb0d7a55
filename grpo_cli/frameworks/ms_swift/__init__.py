"""ms-swift 4.6.0.

Its GRPOTrainer is on Hugging Face's Trainer, which divides by gradient_accumulation_steps.
"""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.ms_swift import choices  # noqa: F401 - to register them
from grpo_cli.frameworks.ms_swift.rows import CHANGES, EARLIER, ROWS

FRAMEWORK = Framework(
    name="ms-swift",
    rows=ROWS,
    earlier=EARLIER,
    changes=CHANGES,
    accumulation="mean",
)
