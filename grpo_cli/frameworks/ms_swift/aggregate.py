"""ms-swift's denominators where they differ from TRL's."""

from __future__ import annotations

from grpo_cli.batch import Segments
from grpo_cli.frameworks.trl.aggregate import ITEMS, over_items
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Weights


def swift_dapo(
    responses: Segments, *, num_items_in_batch: float | None, num_processes: int
) -> Weights:
    """ms-swift's dapo, cispo and fipo: Σ over tokens ÷ (num_items_in_batch/P).

    The trainer multiplies by gradient_accumulation_steps what the Trainer divides by it. Tokens
    that masks take out of the loss stay in num_items_in_batch.
    """
    scale = 1.0 / num_processes
    return over_items(responses.lengths, num_items_in_batch, scale, "÷ num_processes")


def accumulated(
    responses: Segments,
    *,
    num_items_in_batch: float | None,
    num_processes: int,
    gradient_accumulation_steps: int,
) -> Weights:
    """ms-swift's before 4.6: Σ over tokens ÷ (num_items_in_batch/P) ÷ accumulation.

    The Trainer divides by gradient_accumulation_steps on top, so a step is that many times smaller
    than TRL's.
    """
    scale = gradient_accumulation_steps / num_processes
    of = "÷ num_processes × gradient_accumulation_steps"
    return over_items(responses.lengths, num_items_in_batch, scale, of)


CHOICES = {
    "ms-swift/dapo": Choice(swift_dapo, ITEMS),
    "ms-swift/dapo-accumulated": Choice(accumulated, {**ITEMS, "gradient_accumulation_steps": 1}),
}
