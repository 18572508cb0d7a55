"""verl 0.9.1.

Its engines call backward for each micro-batch without dividing by their number, and log the sum
over micro-batches, averaged over ranks: verl/workers/engine/fsdp/transformer_impl.py,
forward_backward_batch, and verl/workers/utils/losses.py, ppo_loss.
"""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.verl import advantage, choices, correction  # noqa: F401 - to register them
from grpo_cli.frameworks.verl.rows import CHANGES, EARLIER, ROWS
from grpo_cli.frameworks.verl.settings import read

FRAMEWORK = Framework(
    name="verl",
    rows=ROWS,
    earlier=EARLIER,
    changes=CHANGES,
    read=read,
    accumulation="sum",
)
