"""Unsloth's denominators where they differ from TRL's."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import I64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Weights


def unsloth_dapo(lengths: I64, *, num_items_in_batch: float | None, num_processes: int) -> Weights:
    """Unsloth's dapo, cispo and vespo: Σ over tokens ÷ (num_items_in_batch ÷ num_processes).

    As TRL before 1.16: neither accumulation nor generation steps scale it.
    """
    return over_items(lengths, num_items_in_batch, 1.0 / num_processes, "÷ num_processes")


def over_items(lengths: I64, items: float | None, scale: float, of: str) -> Weights:
    """Σ over tokens ÷ (num_items_in_batch · scale); the tokens of this batch where it is None."""
    ones = np.ones(len(lengths))
    if items is None:
        return Weights(ones, lengths.astype(np.float64), scale, f"tokens {of}")
    return Weights(ones, None, items * scale, f"num_items_in_batch {of}")


ITEMS = {"num_items_in_batch": None, "num_processes": 1}

CHOICES = {"unsloth/dapo": Choice(unsloth_dapo, ITEMS)}
