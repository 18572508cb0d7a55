"""verl 0.9.1.

Its engines call backward for each micro-batch without dividing by their number, and log the sum
over micro-batches, averaged over ranks: verl/workers/engine/fsdp/transformer_impl.py,
forward_backward_batch, and verl/workers/utils/losses.py, ppo_loss.
"""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.verl import (
    advantage,
    aggregate,
    baseline,
    correction,
    kl,
    ratio,
    surrogate,
)
from grpo_cli.frameworks.verl.earlier import CHANGES, EARLIER
from grpo_cli.frameworks.verl.rollout_rows import ROWS as ROLLOUT
from grpo_cli.frameworks.verl.rows import ROWS
from grpo_cli.frameworks.verl.settings import read

FRAMEWORK = Framework(
    name="verl",
    rows={**ROWS, **ROLLOUT},
    choices={
        "advantage": {**advantage.CHOICES, **baseline.CHOICES},
        "ratio": ratio.CHOICES,
        "surrogate": surrogate.CHOICES,
        "kl": kl.CHOICES,
        "correction": correction.CHOICES,
        "aggregate": aggregate.CHOICES,
    },
    aliases={
        "advantage": advantage.ALIASES,
        "kl": kl.ALIASES,
    },
    earlier=EARLIER,
    changes=CHANGES,
    read=read,
    accumulation="sum",
)
