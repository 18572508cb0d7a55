"""agent-lightning 1.0.0, which trains with verl 0.8; each turn, or run of turns, is a row.

The advantages of a step are divided by its rows before verl cuts it into micro-batches, whose
losses are added up: agentlightning/verl/trainer.py.
"""

from grpo_cli.frameworks.agent_lightning import choices
from grpo_cli.frameworks.agent_lightning.rows import ROWS
from grpo_cli.frameworks.framework import Framework

FRAMEWORK = Framework(
    name="agent-lightning", choices=(choices,), rows=ROWS, accumulation="whole step"
)
