"""ms-swift 4.6.0."""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.ms_swift import aggregate, correction, surrogate
from grpo_cli.frameworks.ms_swift.earlier import CHANGES, EARLIER
from grpo_cli.frameworks.ms_swift.rows import ROWS

FRAMEWORK = Framework(
    name="ms-swift",
    rows=ROWS,
    choices={
        "surrogate": surrogate.CHOICES,
        "correction": correction.CHOICES,
        "aggregate": aggregate.CHOICES,
    },
    earlier=EARLIER,
    changes=CHANGES,
)
