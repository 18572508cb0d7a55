"""AReaL.

A micro-batch's loss is weighted by its loss_weight_fn, the tokens of its loss mask, over those of
all micro-batches and ranks: areal/engine/fsdp_engine.py, _compute_logprobs_and_loss.
"""

from grpo_cli.frameworks.areal import choices, correction  # noqa: F401 - to register them
from grpo_cli.frameworks.areal.rows import ROWS
from grpo_cli.frameworks.framework import Framework

FRAMEWORK = Framework(name="areal", rows=ROWS, accumulation="by tokens")
