"""Unsloth's grpo_compute_loss, of three releases."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from ..framework_sources import Clones
from .inputs import Case, Inputs, Loss

LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "gspo")
WINDOW = ("dapo", "cispo")
SETTINGS: dict[str, Any] = {
    "num_items_in_batch": 50,
    "num_processes": 2,
    "current_gradient_accumulation_steps": 3,
    "steps_per_generation": 6,
    "max_completion_length": 512,
}


def unsloth(clones: Clones) -> Iterator[Case]:
    """Every loss type but vespo, whose weights are TRL's own function."""
    yield from _cases(clones, "unsloth-zoo", "")


def unsloth_earlier(clones: Clones) -> Iterator[Case]:
    """The same of the releases that have rows of their own."""
    for version in ("2026.9.1", "2026.9.7"):
        yield from _cases(clones, f"unsloth-zoo@{version}", f"@{version}")


def _cases(clones: Clones, release: str, suffix: str) -> Iterator[Case]:
    own = clones.load(
        release, "unsloth_zoo/rl_replacements.py", ["grpo_compute_loss"], math=math
    ).grpo_compute_loss

    def run(name: str, beta: float, *, weighted: bool) -> Loss:
        loss_type = "grpo" if name == "gspo" else name
        level = "sequence" if name in ("gspo", "luspo") else "token"

        def value(x: Inputs) -> torch.Tensor:
            ids = torch.zeros(x.mask.shape, dtype=torch.long)
            settings = {
                **SETTINGS,
                "loss_type": loss_type,
                "importance_sampling_level": level,
                "use_bias_correction_kl": weighted,
            }
            return own(
                x.ref, x.new, x.old, None, ids, x.mask, beta, x.advantages[:, 0], **settings
            )[0]

        return value

    for name in LOSSES:
        row = f"unsloth/{name}{suffix}"
        values = _ours(name, rescaled=not suffix)
        yield release, row, {}, values | {"beta": 0.0}, run(name, 0.0, weighted=True)
        if name == "luspo" and suffix:  # its mean took padding in, which a record does not have
            continue
        yield release, row, {}, values | {"beta": 0.1}, run(name, 0.1, weighted=True)
        if not suffix:
            unweighted = {"beta": 0.1, "kl_weight": "none"}
            yield release, row, {}, values | unweighted, run(name, 0.1, weighted=False)


def _ours(name: str, *, rescaled: bool) -> dict[str, Any]:
    accumulation = {"gradient_accumulation_steps": 3}
    if name in WINDOW:
        values: dict[str, Any] = {"num_items_in_batch": 50, "num_processes": 2}
        return values | (accumulation | {"steps_per_generation": 6} if rescaled else {})
    return accumulation | ({"max_completion_length": 512} if name == "dr_grpo" else {})
