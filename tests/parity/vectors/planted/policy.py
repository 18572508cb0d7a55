"""Faults in the ratio and the surrogate."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from ..plain import Plain


class RatioOfSums(Plain):
    def log_ratio(self, x: SimpleNamespace) -> Tensor:
        own = self.difference(x, x.new, x.old)
        return own.sum(1, keepdim=True).expand_as(own)


class MinimumBeforeAdvantage(Plain):
    def clip(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        rho = self.ratio(x)
        bounded = rho.clamp(1 - x.how["epsilon_low"], 1 + x.how["epsilon_high"])
        return self.dual(x, torch.minimum(rho, bounded) * a, a)


class ClipUnused(Plain):
    def clip(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return self.dual(x, self.ratio(x) * a, a)

    def driven(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return torch.zeros_like(x.keep)

    def covariance(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return torch.zeros_like(super().covariance(x, a))


class DppoBothSides(Plain):
    def driven(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return torch.ones_like(x.keep)


class EpsilonHigh(Plain):
    def clip(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        x.how = x.how | {"epsilon_low": 0.2, "epsilon_high": 0.2}
        return super().clip(x, a)


class DualClipPositive(Plain):
    def dual(self, x: SimpleNamespace, value: Tensor, a: Tensor) -> Tensor:
        return torch.maximum(value, x.how["dual_clip"] * a) if "dual_clip" in x.how else value

    def values(self, x: SimpleNamespace) -> dict[str, Tensor]:
        found = super().values(x)
        if "dual_clip" in x.how:
            found["dual_clip_fraction"] = (self.ratio(x) > x.how["dual_clip"]).to(self.dtype)
        return found


class DualClipDropped(Plain):
    def clip(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        x.how = {k: v for k, v in x.how.items() if k not in ("dual_clip", "delta")}
        return super().clip(x, a)


class OldIgnored(Plain):
    def ratio(self, x: SimpleNamespace) -> Tensor:
        x.old = x.new.detach()
        return super().ratio(x)


class RatioOneGradient(Plain):
    def ratio(self, x: SimpleNamespace) -> Tensor:
        rho = super().ratio(x)
        return torch.where(rho == 1, rho.detach(), rho)

    def reinforce(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return super().reinforce(x, a).detach() + x.new * 0


class AdvantageDropped(Plain):
    def sapo(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return -super().sapo(x, a) / a


class CispoGradientCut(Plain):
    def cispo(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        rho, term = self.ratio(x).detach(), super().cispo(x, a)
        inside = (rho >= 1 - x.how["epsilon_low"]) & (rho <= 1 + x.how["epsilon_high"])
        return torch.where(inside, term, term.detach())


class CispoWeightGradient(Plain):
    def cispo(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        weight = self.ratio(x).clamp(1 - x.how["epsilon_low"], 1 + x.how["epsilon_high"])
        return weight * self.reinforce(x, a)

    def vespo(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return self.phi(x, a) * self.reinforce(x, a)


class GmpoTwoSided(Plain):
    def gmpo(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        d = self.difference(x, x.new, x.old).clamp(-x.how["epsilon_low"], x.how["epsilon_high"])
        return ((d.sum(1, keepdim=True) / self.lengths(x)).exp() * a).expand_as(d)
