"""Rows, choices and hyperparameters as formulas take them: the tests' one way into ``variants``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from grpo_cli import VARIANTS
from grpo_cli.batch import Batch
from grpo_cli.frameworks.framework import as_of
from grpo_cli.hyperparameters import (
    HYPERPARAMETERS,
    Hyperparameter,
    HyperparameterError,
    Value,
    canonical,
)
from grpo_cli.objective import pipeline
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.objective import Objective
from grpo_cli.variants.plan import plan
from grpo_cli.variants.registry import EARLIER, FRAMEWORKS, NAMES, ROWS, STAGES, framework
from grpo_cli.variants.trainer import choose, completed, named_row

__all__ = [
    "EARLIER",
    "ESTIMATES",
    "FRAMEWORKS",
    "HYPERPARAMETERS",
    "NAMES",
    "ROWS",
    "STAGES",
    "VARIANTS",
    "Hyperparameter",
    "HyperparameterError",
    "Value",
    "as_of",
    "canonical",
    "choose",
    "completed",
    "framework",
    "named_row",
    "objective",
    "on",
    "plan",
]

ESTIMATES: Mapping[str, Callable[[Any], Any]] = {
    "k1": lambda d: d,
    "k2": lambda d: d * d / 2,
    "k3": lambda d: np.exp(-d) - 1 + d,
    "abs": np.abs,
}
"""Of the KL, by definition, from d = log π − log π_ref."""


def objective(row: str, **how: Any) -> Objective:
    """A row with stages swapped and values given; names of stages are told from the others."""
    stages = {name: how.pop(name) for name in [*how] if name in STAGES}
    made = plan(row, stages=stages, hyperparameters=how)
    return made.objective({}, advantages_given=False)


def on(batch: Batch, row: str, **how: Any) -> Breakdown:
    """What a row makes of a batch."""
    return pipeline.evaluate(batch, objective(row, **how))
