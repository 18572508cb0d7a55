"""Streams records through an objective: blocks → breakdowns → output bytes and totals."""

from grpo_cli.engine.evaluation import Evaluation
from grpo_cli.engine.reader import Reader
from grpo_cli.engine.totals import Totals

__all__ = ["Evaluation", "Reader", "Totals"]
