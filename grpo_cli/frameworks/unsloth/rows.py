"""Unsloth where its number is not TRL's."""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.frameworks.liger.rows import relative
from grpo_cli.objective.row import use

_UNSLOTH = "unsloth-zoo 2026.8.13"
ROWS = {
    "unsloth/dapo": replace(
        relative(
            "trl/dapo",
            "Unsloth GRPO loss, loss_type dapo",
            _UNSLOTH,
            0.0,
            "num_items_in_batch is not brought to one accumulation window, as in TRL before 1.16. "
            "Its logged kl is the mean over responses of token means.",
        ),
        aggregate=use("unsloth/dapo"),
    ),
}
