"""Tinker: the cookbook's KL penalty; and gspo as its documentation writes it.

Its losses run on Tinker's servers: gspo is an independent computation of the documented formula.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from ..framework_sources import Clones
from .inputs import SIZE, Case, Inputs

NAME = "tinker-cookbook"


def tinker(clones: Clones) -> Iterator[Case]:
    """gspo, by torch's autograd."""
    clones.text(NAME, "tinker_cookbook/rl/metrics.py")

    def gspo(x: Inputs, low: float, high: float) -> torch.Tensor:
        shift = ((x.new.detach() - x.gen) * x.mask).sum(-1) / x.lengths.clamp(min=1)
        ratio = torch.exp(shift[:, None] + x.new - x.new.detach())
        gain = torch.minimum(ratio * x.advantages, ratio.clamp(low, high) * x.advantages)
        return -(gain * x.mask).sum()

    yield NAME, "tinker/gspo", {}, {}, lambda x: gspo(x, 0.8, 1.2)
    narrow = {"epsilon_low": 3e-4, "epsilon_high": 4e-4}
    yield NAME, "tinker/gspo", {}, narrow, lambda x: gspo(x, 1 - 3e-4, 1 + 4e-4)


class _Data:
    """Stands in for tinker.TensorData."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    def to_torch(self) -> torch.Tensor:
        return self.values

    from_torch = classmethod(lambda cls, values: cls(values))


def tinker_advantages(clones: Clones) -> Iterator[Case]:
    """compute_advantages, then incorporate_kl_penalty."""
    data = clones.load(NAME, "tinker_cookbook/rl/data_processing.py", ["compute_advantages"])

    def value(x: Inputs) -> torch.Tensor:
        rewards = x.rewards.reshape(-1, SIZE).tolist()
        groups = [SimpleNamespace(get_total_rewards=lambda row=row: row) for row in rewards]
        centred = torch.cat(data.compute_advantages(groups))[:, None].expand(x.mask.shape)
        names = ("advantages", "logprobs", "mask")
        rows = [
            SimpleNamespace(loss_fn_inputs=dict(zip(names, map(_Data, row), strict=True)))
            for row in zip(centred, x.gen, x.mask, strict=True)
        ]
        asyncio.run(_penalty(clones, x)(rows, None, 0.3, 0.0))
        return torch.stack([row.loss_fn_inputs["advantages"].to_torch() for row in rows])

    stages = {"kl": "tinker/centred"}
    yield NAME, "tinker/importance_sampling", stages, {"beta": 0.3}, value
    yield NAME, "tinker/gspo", stages, {"beta": 0.3}, value


def _penalty(clones: Clones, x: Inputs) -> Any:
    async def score(*_: Any) -> Any:
        return [[0.0, *row.tolist()] for row in x.ref], None  # the first is of the first token

    known = clones.load(
        NAME,
        "tinker_cookbook/rl/metrics.py",
        ["incorporate_kl_penalty"],
        score_sequences=score,
        _full_sequence_inputs=lambda rows: rows,
        safezip=lambda *columns: zip(*columns, strict=True),
        tinker=SimpleNamespace(TensorData=_Data),
    )
    return known.incorporate_kl_penalty
