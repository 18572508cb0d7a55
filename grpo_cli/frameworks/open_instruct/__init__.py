"""open-instruct."""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.open_instruct import aggregate, correction
from grpo_cli.frameworks.open_instruct.rows import ROWS

FRAMEWORK = Framework(
    name="open-instruct",
    rows=ROWS,
    choices={
        "correction": correction.CHOICES,
        "aggregate": aggregate.CHOICES,
    },
)
