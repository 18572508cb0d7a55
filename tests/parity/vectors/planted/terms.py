"""Faults in the KL and in the correction."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from ..plain import Plain


class KlReversed(Plain):
    def reference_gap(self, x: SimpleNamespace) -> Tensor:
        return -super().reference_gap(x)

    def scores(self, x: SimpleNamespace) -> Tensor:
        return 2 * x.rewards - super().scores(x)


class KlDropped(Plain):
    def penalty(self, x: SimpleNamespace) -> Tensor:
        return super().penalty(x) * 0

    def scores(self, x: SimpleNamespace) -> Tensor:
        return x.rewards


class KlGradient(Plain):
    def penalty(self, x: SimpleNamespace) -> Tensor:
        value, slope = super().penalty(x), self.reference_gap(x)
        other = slope if x.choices["kl"] in ("k2", "k3") else slope**2 / 2
        return value.detach() + other - other.detach()


class KlWeightGradient(Plain):
    def penalty(self, x: SimpleNamespace) -> Tensor:
        if x.how.get("kl_weight") != "ratio":
            return self.estimate(x)
        return self.difference(x, x.new, x.old).exp().detach() * self.estimate(x)


class KlWeightLevel(Plain):
    def penalty(self, x: SimpleNamespace) -> Tensor:
        if x.how.get("kl_weight") != "ratio":
            return self.estimate(x)
        return self.ratio(x) * self.estimate(x)


class KlClamp(Plain):
    def estimate(self, x: SimpleNamespace) -> Tensor:
        return super().estimate(x).clamp(-5, 5)


class CorrectionOnKl(Plain):
    def penalty(self, x: SimpleNamespace) -> Tensor:
        kl = super().penalty(x)
        return kl if x.choices["correction"] == "none" else kl * self.correction(x)


class CorrectionDropped(Plain):
    def correction(self, x: SimpleNamespace) -> Tensor:
        return torch.ones_like(x.new)


class CorrectionMeanLeft(Plain):
    def mean_weight(self, x: SimpleNamespace, weight: Tensor) -> Tensor:
        return torch.ones(())


class EntropyDropped(Plain):
    def heights(self, x: SimpleNamespace) -> Tensor:
        return super().heights(x) * 0


class EntropySign(Plain):
    def heights(self, x: SimpleNamespace) -> Tensor:
        return -super().heights(x)


class EntropyMasked(Plain):
    def heights(self, x: SimpleNamespace) -> Tensor:
        return x.entropies


class CorrectionGradient(Plain):
    def policy(self, x: SimpleNamespace) -> Tensor:
        a = x.advantages[:, None]
        term = self.term(x, a)
        if x.choices["correction"] != "none":
            x.old = x.old + x.new - x.new.detach()
            term = term * self.correction(x)
        return -term

    def engine_gap(self, x: SimpleNamespace) -> Tensor:
        return self.difference(x, x.old, x.log_probs_rollout)


class CorrectionOfNew(Plain):
    def engine_gap(self, x: SimpleNamespace) -> Tensor:
        return self.difference(x, x.new.detach(), x.log_probs_rollout)

    def off_policy(self, x: SimpleNamespace) -> Tensor:
        return self.difference(x, x.new.detach(), x.log_probs_rollout).exp()


class CorrectionSumOfRatios(Plain):
    def sequence_weight(self, x: SimpleNamespace, level: str) -> Tensor:
        own = torch.where(x.keep, self.engine_gap(x).exp(), 0.0)
        if level == "sequence":
            return own.sum(1, keepdim=True).expand_as(own)
        return super().sequence_weight(x, level)


class CorrectionProductOrMean(Plain):
    def sequence_weight(self, x: SimpleNamespace, level: str) -> Tensor:
        swap = {"sequence": "geometric", "geometric": "sequence"}
        return super().sequence_weight(x, swap.get(level, level))

    def log_ratio(self, x: SimpleNamespace) -> Tensor:
        if x.choices["ratio"] == "product":
            x.choices = {**x.choices, "ratio": "sequence"}
        return super().log_ratio(x)


class CorrectionGradient2(Plain):
    """The weight is of the current policy, as where no old one is computed, and not held."""

    def policy(self, x: SimpleNamespace) -> Tensor:
        term = self.term(x, x.advantages[:, None])
        return -term if x.choices["correction"] == "none" else -term * self.correction(x)

    def engine_gap(self, x: SimpleNamespace) -> Tensor:
        return self.difference(x, x.new, x.log_probs_rollout)
