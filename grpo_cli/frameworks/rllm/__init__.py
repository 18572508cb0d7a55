"""rLLM, which trains with verl's loss; a step of a trajectory is a row."""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.rllm import choices
from grpo_cli.frameworks.rllm.rows import ROWS

FRAMEWORK = Framework(name="rllm", choices=(choices,), rows=ROWS, accumulation="sum")
