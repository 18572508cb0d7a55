"""SkyRL at commit a9564572.

The policy's denominators span the mini-batch and all ranks; KL and entropy of a micro-batch are
weighted by its responses: skyrl/backends/skyrl_train/workers/worker.py, _forward_backward_micro.
"""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.skyrl import choices  # noqa: F401 - to register them
from grpo_cli.frameworks.skyrl.rows import ROWS

FRAMEWORK = Framework(
    name="skyrl",
    rows=ROWS,
    accumulation="whole step",
    entropy_accumulation="by responses",
)
