"""Faults in what is logged."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from ..plain import Plain


class ClipFractionSign(Plain):
    def bound(self, x: SimpleNamespace, rho: Tensor) -> tuple[Tensor, Tensor]:
        low, high = rho < 1 - x.how["epsilon_low"], rho > 1 + x.how["epsilon_high"]
        return low.to(self.dtype), high.to(self.dtype)


class MetricPadding(Plain):
    def logged(self, x: SimpleNamespace, value: Tensor) -> Tensor:
        return torch.where(x.keep, value, 0.0).mean()


class MetricKlReversed(Plain):
    def values(self, x: SimpleNamespace) -> dict[str, Tensor]:
        found = super().values(x)
        for name in ("ppo_kl", "rollout_kl"):
            if name in found:
                found[name] = -found[name]
        if "rollout_k3" in found:
            gap = -self.engine_gap(x)
            found["rollout_k3"] = gap.exp() - gap - 1
        return found
