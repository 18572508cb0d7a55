"""The engine that sampled, and the reference."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from .counted import Counted


class Reference(Counted):
    """The weights of the correction, and the KL."""

    def engine_gap(self, x: SimpleNamespace) -> Tensor:
        return self.difference(x, x.old, x.log_probs_rollout)

    def correction(self, x: SimpleNamespace) -> Tensor:
        if x.choices["correction"] == "off-policy-mask":
            return self.off_policy(x)
        weight = self.weight(x, x.choices["correction"])
        return weight / self.mean_weight(x, weight) if "is_batch_normalize" in x.how else weight

    def mean_weight(self, x: SimpleNamespace, weight: Tensor) -> Tensor:
        if x.choices["correction"].startswith("sequence"):
            return weight[x.keep.any(1), 0].mean()
        return weight[x.keep].mean()

    def weight(self, x: SimpleNamespace, choice: str) -> Tensor:
        level, _, kind = choice.rpartition("-")
        own = self.engine_gap(x).exp()
        whole = self.sequence_weight(x, level)
        low, high = x.how.get("is_low", 0.0), x.how.get("is_high", float("inf"))
        if kind == "truncate":
            return whole.clamp(low, high)
        kept = own if level == "geometric" else whole
        return torch.where((whole >= low) & (whole <= high), kept, 0.0)

    def sequence_weight(self, x: SimpleNamespace, level: str) -> Tensor:
        gap = self.engine_gap(x)
        if level == "token":
            return gap.exp()
        total = gap.sum(1, keepdim=True)
        return (total if level == "sequence" else total / self.lengths(x)).exp().expand_as(gap)

    def off_policy(self, x: SimpleNamespace) -> Tensor:
        gap = self.difference(x, x.log_probs_rollout, x.new.detach())
        behind = gap.sum(1) / self.lengths(x)[:, 0]
        dropped = (x.advantages < 0) & (behind > x.how["off_policy_mask_threshold"])
        return (~dropped).to(self.dtype)[:, None].expand_as(gap)

    def reference_gap(self, x: SimpleNamespace) -> Tensor:
        return self.difference(x, x.new, x.log_probs_ref)

    def estimate(self, x: SimpleNamespace) -> Tensor:
        gap = self.reference_gap(x)
        if "kl_input_clamp" in x.how:
            gap = gap.clamp(-x.how["kl_input_clamp"], x.how["kl_input_clamp"])
        estimates = {
            "k1": lambda: gap,
            "k2": lambda: gap**2 / 2,
            "k3": lambda: (-gap).exp() + gap - 1,
            "abs": lambda: gap.abs(),
        }
        value = estimates[x.choices["kl"]]()
        if "kl_output_clamp" in x.how:
            value = value.clamp(-x.how["kl_output_clamp"], x.how["kl_output_clamp"])
        return value

    def penalty(self, x: SimpleNamespace) -> Tensor:
        if x.how.get("kl_weight") != "ratio":
            return self.estimate(x)
        return self.difference(x, x.new, x.old).exp() * self.estimate(x)
