"""More faults in the KL."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from ..plain import Plain


class KlSign(Plain):
    def penalty(self, x: SimpleNamespace) -> Tensor:
        return -super().penalty(x)

    def scores(self, x: SimpleNamespace) -> Tensor:
        return 2 * x.rewards - super().scores(x)


class KlBeta(Plain):
    def penalty(self, x: SimpleNamespace) -> Tensor:
        return super().penalty(x) * 0.4

    def scores(self, x: SimpleNamespace) -> Tensor:
        return x.rewards + (super().scores(x) - x.rewards) * 0.4


class KlDetached(Plain):
    def penalty(self, x: SimpleNamespace) -> Tensor:
        return super().penalty(x).detach()


class KlOfOld(Plain):
    def reference_gap(self, x: SimpleNamespace) -> Tensor:
        return self.difference(x, x.new, x.old)


class KlWeight(Plain):
    def penalty(self, x: SimpleNamespace) -> Tensor:
        return self.estimate(x)


class KlWeight2(Plain):
    def penalty(self, x: SimpleNamespace) -> Tensor:
        return self.difference(x, x.new, x.old).exp() * self.estimate(x)


class _KlEstimator(Plain):
    kind = "k3"

    def penalty(self, x: SimpleNamespace) -> Tensor:
        x.choices = {**x.choices, "kl": self.kind}
        return super().penalty(x)


class KlEstimator(_KlEstimator):
    kind = "k1"


class KlEstimator2(_KlEstimator):
    kind = "k2"


class KlEstimator3(_KlEstimator):
    kind = "k3"


class KlEstimator4(_KlEstimator):
    kind = "abs"


class KlSquare(Plain):
    def estimate(self, x: SimpleNamespace) -> Tensor:
        return self.reference_gap(x) ** 2


class KlSquare2(Plain):
    def estimate(self, x: SimpleNamespace) -> Tensor:
        return super().estimate(x) * (2 if x.choices["kl"] == "k2" else 1)


class KlClamp2(Plain):
    def estimate(self, x: SimpleNamespace) -> Tensor:
        return super().estimate(x).clamp(-10, 10)


class KlClamp3(Plain):
    def reference_gap(self, x: SimpleNamespace) -> Tensor:
        return super().reference_gap(x).clamp(-10, 10)


class KlClamp4(Plain):
    def reference_gap(self, x: SimpleNamespace) -> Tensor:
        return super().reference_gap(x).clamp(-5, 5)


class KlAggregate(Plain):
    """A token mean of its own."""

    def loss(self, x: SimpleNamespace) -> Tensor:
        if x.choices["kl"] == "none":
            return super().loss(x)
        found, x.choices = x.choices, {**x.choices, "kl": "none"}
        policy = super().loss(x)
        x.choices = found
        own = self.chosen(x, self.penalty(x)).sum() / self.counted(x)
        share = len(x.keep) / x.step.responses * x.step.ranks
        return policy + x.how["beta"] * own * share

    def counted(self, x: SimpleNamespace) -> Tensor:
        return x.keep.sum().clamp(min=1)


class KlAggregate2(KlAggregate):
    def counted(self, x: SimpleNamespace) -> Tensor:
        return torch.tensor(float(x.keep.numel()))


class KlAggregate3(KlAggregate):
    """Each response's mean first."""

    def counted(self, x: SimpleNamespace) -> Tensor:
        return self.lengths(x) * len(x.keep)

    def loss(self, x: SimpleNamespace) -> Tensor:
        if x.choices["kl"] == "none":
            return super().loss(x)
        found, x.choices = x.choices, {**x.choices, "kl": "none"}
        policy = Plain.loss(self, x)
        x.choices = found
        own = (self.chosen(x, self.penalty(x)) / self.counted(x)).sum()
        return policy + x.how["beta"] * own * len(x.keep) / x.step.responses * x.step.ranks
