"""The policy term of each token."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from .counted import Counted


class Policy(Counted):
    """The ratio, and how it is tamed."""

    def policy(self, x: SimpleNamespace) -> Tensor:
        a = x.advantages[:, None]
        term = self.term(x, a)
        if x.choices["correction"] != "none":
            term = term * self.correction(x).detach()
        return -term

    def term(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        surrogate: Tensor = getattr(self, x.choices["surrogate"].replace("-", "_"))(x, a)
        return surrogate

    def log_ratio(self, x: SimpleNamespace) -> Tensor:
        own = self.difference(x, x.new, x.old)
        level = x.choices["ratio"]
        if level == "token":
            return own
        if level == "product":
            return own.sum(1, keepdim=True).expand_as(own)
        mean = (own.sum(1, keepdim=True) / self.lengths(x)).expand_as(own)
        if level == "sequence":
            return mean
        return mean.detach() + self.difference(x, x.new, x.new.detach())

    def ratio(self, x: SimpleNamespace) -> Tensor:
        return self.log_ratio(x).exp()

    def clip(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        rho = self.ratio(x)
        bounded = rho.clamp(1 - x.how["epsilon_low"], 1 + x.how["epsilon_high"]) * a
        free = rho.clamp(max=x.how["delta"]) * a if "delta" in x.how else rho * a
        return self.dual(x, torch.minimum(free, bounded), a)

    def dual(self, x: SimpleNamespace, value: Tensor, a: Tensor) -> Tensor:
        if "dual_clip" not in x.how:
            return value
        return torch.where(a < 0, torch.maximum(value, x.how["dual_clip"] * a), value)

    def unclipped(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return self.ratio(x) * a

    def reinforce(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return torch.where(x.keep, x.new, 0.0) * a

    def cispo(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        weight = self.ratio(x).clamp(1 - x.how["epsilon_low"], 1 + x.how["epsilon_high"])
        return weight.detach() * self.reinforce(x, a)

    def sapo(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        tau = torch.where(a > 0, x.how["tau_pos"], x.how["tau_neg"]).to(self.dtype)
        return torch.sigmoid(tau * (self.ratio(x) - 1)) * 4 / tau * a

    def gmpo(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        d = self.difference(x, x.new, x.old)
        high, low = d.clamp(max=x.how["epsilon_high"]), d.clamp(min=-x.how["epsilon_low"])
        mean = torch.where(a > 0, high, low).sum(1, keepdim=True) / self.lengths(x)
        return (mean.exp() * a).expand_as(d)
