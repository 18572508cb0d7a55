"""ms-swift 4.6.0.dev0."""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.ms_swift import aggregate, correction
from grpo_cli.frameworks.ms_swift.rows import ROWS

FRAMEWORK = Framework(
    name="ms-swift",
    rows=ROWS,
    choices={
        "correction": correction.CHOICES,
        "aggregate": aggregate.CHOICES,
    },
)
