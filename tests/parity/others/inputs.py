"""A batch as the frameworks hold it, and what a case is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..batches import Ragged

SIZE = 4
"""Responses of each group, where a framework reshapes rewards into equal groups."""


class Inputs:
    """A batch as the frameworks hold it: padded [R, T] in float64; ``new`` takes the gradient."""

    def __init__(self, batch: Ragged) -> None:
        def column(name: str) -> torch.Tensor:
            return torch.tensor(batch.padded(name), dtype=torch.float64)

        self.batch = batch
        self.mask = column("mask")
        self.new = column("log_probs_new").requires_grad_()
        self.old, self.ref = column("log_probs_old"), column("log_probs_ref")
        self.gen, self.entropies = column("log_probs_rollout"), column("entropies")
        self.advantages = torch.tensor(batch.advantages)[:, None].expand(self.mask.shape)
        self.lengths = self.mask.sum(-1)
        self.rewards = torch.tensor(batch.rewards)

    def token_mean(self, values: torch.Tensor) -> torch.Tensor:
        """Σ over tokens / number of tokens."""
        return (values * self.mask).sum() / self.mask.sum()

    def response_mean(self, values: torch.Tensor) -> torch.Tensor:
        """Mean over responses of token means; one without tokens counts."""
        return ((values * self.mask).sum(-1) / self.lengths.clamp(min=1)).mean()

    def packed(self, table: torch.Tensor) -> list[torch.Tensor]:
        """One tensor per response."""
        return [row[: len(m)] for row, m in zip(table, self.batch.mask, strict=True)]


Loss = Callable[[Inputs], torch.Tensor]
Case = tuple[str, str, dict[str, str], dict[str, Any], Loss]
"""Framework, variant, stages, hyperparameters, and the loss or the advantages [R, T]."""
