"""Surrogates that hold tokens back by a weight, a divergence or a covariance."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from .policy import Policy


class Soft(Policy):
    """VESPO, DPPO, KL-Cov and Clip-Cov."""

    def vespo(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return self.phi(x, a).detach() * self.reinforce(x, a)

    def phi(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        k = torch.where(a >= 0, x.how["vespo_k_pos"], x.how["vespo_k_neg"]).to(self.dtype)
        rate = torch.where(a >= 0, x.how["vespo_lambda_pos"], x.how["vespo_lambda_neg"])
        log_ratio = self.log_ratio(x)
        return (k * log_ratio + rate.to(self.dtype) * (1 - log_ratio.exp())).exp()

    def dppo_tv(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return self.within_bounds(x, a, (x.new.exp() - x.old.exp()).abs())

    def dppo_kl(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        p, q = x.old.exp(), x.new.exp()
        divergence = p * (x.old - x.new) + (1 - p) * ((1 - p) / (1 - q)).log()
        return self.within_bounds(x, a, divergence)

    def within_bounds(self, x: SimpleNamespace, a: Tensor, divergence: Tensor) -> Tensor:
        bound = torch.where(a > 0, x.how["divergence_high"], x.how["divergence_low"])
        dropped = self.driven(x, a) & (divergence > bound)
        return torch.where(dropped, 0.0, self.ratio(x) * a)

    def driven(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return (x.new > x.old) == (a > 0)

    def covariance(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        height, flat = x.new.detach(), a.expand_as(x.new)
        kept = self.statistic(x)
        return (flat - flat[kept].mean()) * (height - height[kept].mean())

    def statistic(self, x: SimpleNamespace) -> Tensor:
        return x.keep

    def kl_cov(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        cov = self.covariance(x, a).masked_fill(~x.keep, -torch.inf)
        count = max(1, int(int(x.keep.sum()) * x.how["kl_cov_ratio"]))
        held = torch.zeros_like(x.keep).flatten()
        held[cov.flatten().topk(count).indices] = True
        moved = self.difference(x, x.new, x.old).abs()
        free = self.ratio(x) * a
        return torch.where(held.view_as(free), free - x.how["ppo_kl_coef"] * moved, free)

    def clip_cov(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        cov, value = self.covariance(x, a), self.clip(x, a)
        held = (cov > x.how["clip_cov_lb"]) & (cov < x.how["clip_cov_ub"])
        return torch.where(held & (value >= self.ratio(x) * a), 0.0, value)
