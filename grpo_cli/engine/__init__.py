"""Streams records through an objective: blocks → breakdowns → output bytes and totals."""

from grpo_cli.engine.evaluation import Evaluation
from grpo_cli.engine.totals import Totals
from grpo_cli.engine.worker import Outcome, Task

__all__ = ["Evaluation", "Outcome", "Task", "Totals"]
