"""open-instruct.

The denominator is that of an accumulation group on all ranks: open_instruct/grpo_fast.py, step.
"""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.open_instruct import choices
from grpo_cli.frameworks.open_instruct.rows import ROWS

FRAMEWORK = Framework(
    name="open-instruct", choices=(choices,), rows=ROWS, accumulation="whole step"
)
