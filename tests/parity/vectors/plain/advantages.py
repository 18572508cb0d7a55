"""From rewards to advantages."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from .counted import Counted


class Advantages(Counted):
    """Group by group."""

    def advantages(self, x: SimpleNamespace) -> Tensor:
        scores = self.scores(x)
        out = torch.zeros_like(scores)
        for group in self.grouped(x):
            out[group] = self.within(x, scores[group], scores)
        return out

    def scores(self, x: SimpleNamespace) -> Tensor:
        if x.choices["kl"] != "k1-in-reward":
            return x.rewards
        gap = self.difference(x, x.log_probs_old, x.log_probs_ref)
        return x.rewards - x.how["beta"] * gap.sum(1)

    def grouped(self, x: SimpleNamespace) -> list[Tensor]:
        return [(x.groups == group).nonzero()[:, 0] for group in x.groups.unique()]

    def within(self, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor:
        centred = torch.where((r == r[0]).all(), torch.zeros_like(r), r - r.mean())
        choice = x.choices["advantage"]
        if choice == "group-mean":
            return centred
        if choice == "leave-one-out":
            return centred * len(r) / max(len(r) - 1, 1)
        if choice == "leave-one-out-std":
            return self.against_others(x, r)
        return centred / (self.deviation(x, r, batch) + x.how["std_eps"])

    def deviation(self, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor:
        return self.std(x, batch if x.choices["advantage"] == "batch-std" else r)

    def std(self, x: SimpleNamespace, rewards: Tensor) -> Tensor:
        ddof = x.how.get("std_ddof", 1)
        return rewards.std(correction=ddof) if len(rewards) > ddof else torch.tensor(0.0)

    def against_others(self, x: SimpleNamespace, r: Tensor) -> Tensor:
        out = torch.zeros_like(r)
        for i in range(len(r)):
            others = torch.cat([r[:i], r[i + 1 :]])
            sigma = self.spread(others)
            offset = r[i] - others.mean()
            out[i] = offset / (sigma + x.how["std_eps"]) if self.divides(sigma) else offset
        return out

    def spread(self, others: Tensor) -> Tensor:
        return others.std()

    def divides(self, sigma: Tensor) -> bool:
        return bool(sigma > 0)
