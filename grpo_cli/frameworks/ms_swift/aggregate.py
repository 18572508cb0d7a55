"""Denominators of Liger-Kernel, Unsloth and ms-swift where they differ from TRL's."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import I64, Segments
from grpo_cli.objective.aggregate.result import Weights
from grpo_cli.objective.choice import Choice


def liger_luspo(lengths: I64, *, response_length: float) -> Weights:
    """Liger's Triton luspo: Σᵢ |oᵢ|·Σₜ over responses × padded width.

    Its chunked luspo is TRL's. With the sequence ratio a response counts |oᵢ|² of its term, not
    |oᵢ|, and the width of the padding is in the denominator.
    """
    of = "responses × response_length, each times its own tokens"
    return Weights(lengths.astype(np.float64), np.ones(len(lengths)), response_length, of)


def unsloth_dapo(lengths: I64, *, num_items_in_batch: float | None, num_processes: int) -> Weights:
    """Unsloth's dapo, cispo and vespo: Σ over tokens ÷ (num_items_in_batch ÷ num_processes).

    As TRL before 1.16: neither accumulation nor generation steps scale it.
    """
    return _items(lengths, num_items_in_batch, 1.0 / num_processes, "÷ num_processes")


def swift_dapo(
    responses: Segments,
    *,
    num_items_in_batch: float | None,
    num_processes: int,
    gradient_accumulation_steps: int,
) -> Weights:
    """ms-swift's dapo and cispo: Σ over tokens ÷ (num_items_in_batch/P) ÷ accumulation.

    The Trainer divides by gradient_accumulation_steps on top, so a step is that many times smaller
    than TRL's. Tokens that masks take out of the loss stay in num_items_in_batch.
    """
    scale = gradient_accumulation_steps / num_processes
    of = "÷ num_processes × gradient_accumulation_steps"
    return _items(responses.lengths, num_items_in_batch, scale, of)


def _items(lengths: I64, items: float | None, scale: float, of: str) -> Weights:
    ones = np.ones(len(lengths))
    if items is None:
        return Weights(ones, lengths.astype(np.float64), scale, f"tokens {of}")
    return Weights(ones, None, items * scale, f"num_items_in_batch {of}")


_ITEMS = {"num_items_in_batch": None, "num_processes": 1}

CHOICES = {
    "liger/luspo": Choice(liger_luspo),
    "unsloth/dapo": Choice(unsloth_dapo, _ITEMS),
    "ms-swift/dapo": Choice(swift_dapo, {**_ITEMS, "gradient_accumulation_steps": 1}),
}
ALIASES: dict[str, str] = {}
