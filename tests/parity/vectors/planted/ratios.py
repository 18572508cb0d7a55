"""More faults in the ratio and its clip, each with the forms in which it was seen."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from ..plain import Plain


def at_level(x: SimpleNamespace, level: str) -> SimpleNamespace:
    x.choices = {**x.choices, "ratio": level}
    return x


class RatioInverted(Plain):
    def log_ratio(self, x: SimpleNamespace) -> Tensor:
        return -super().log_ratio(x)


class RatioPolicy(Plain):
    def log_ratio(self, x: SimpleNamespace) -> Tensor:
        if x.log_probs_ref is not None:
            x.old = x.log_probs_ref
        return super().log_ratio(x)


class RatioPolicy2(Plain):
    def log_ratio(self, x: SimpleNamespace) -> Tensor:
        old = x.old
        x.old = x.old if x.log_probs_rollout is None else x.log_probs_rollout
        found = super().log_ratio(x)
        x.old = old
        return found


class RatioLevel(Plain):
    def log_ratio(self, x: SimpleNamespace) -> Tensor:
        return super().log_ratio(at_level(x, "token"))


class RatioLevel2(Plain):
    def log_ratio(self, x: SimpleNamespace) -> Tensor:
        return super().log_ratio(at_level(x, "sequence"))


class RatioLevel3(Plain):
    def log_ratio(self, x: SimpleNamespace) -> Tensor:
        sequence = x.choices["ratio"] == "sequence"
        return super().log_ratio(at_level(x, "product") if sequence else x)


class RatioWidth(Plain):
    def log_ratio(self, x: SimpleNamespace) -> Tensor:
        found = super().log_ratio(x)
        if not x.choices["ratio"].startswith("sequence"):
            return found
        return found * self.lengths(x) / x.keep.shape[1]


class RatioSlope(Plain):
    def log_ratio(self, x: SimpleNamespace) -> Tensor:
        found = super().log_ratio(x)
        if x.choices["ratio"] != "sequence":
            return found
        return found.detach() + (found - found.detach()) * self.lengths(x)


class RatioDetached(Plain):
    def ratio(self, x: SimpleNamespace) -> Tensor:
        return super().ratio(x).detach() + 0 * x.new


class RatioWithoutExp(Plain):
    def ratio(self, x: SimpleNamespace) -> Tensor:
        return 1 + self.log_ratio(x)


class RatioWithoutExp2(Plain):
    def ratio(self, x: SimpleNamespace) -> Tensor:
        return self.log_ratio(x)


class RatioBase(Plain):
    def ratio(self, x: SimpleNamespace) -> Tensor:
        return torch.exp2(self.log_ratio(x))


class _RatioClamped(Plain):
    limit = 20.0

    def log_ratio(self, x: SimpleNamespace) -> Tensor:
        return super().log_ratio(x).clamp(-self.limit, self.limit)

    def gmpo(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        x.old = x.new - self.difference(x, x.new, x.old).clamp(-self.limit, self.limit)
        return super().gmpo(x, a)


class RatioClamped(_RatioClamped):
    limit = 10.0


class RatioClamped2(_RatioClamped):
    limit = 5.0


class RatioClamped3(_RatioClamped):
    limit = 2.0


class LogProbForRatio(Plain):
    def clip(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return self.reinforce(x, a)


# ---- the clip ------------------------------------------------------------------------------------


class _Clip(Plain):
    """The clip with other bounds, or put together otherwise."""

    def clip(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        rho = self.ratio(x)
        free = rho.clamp(max=x.how["delta"]) * a if "delta" in x.how else rho * a
        low, high = self.bounds(x)
        return self.dual(x, self.joined(free, rho.clamp(low, high) * a), a)

    def bounds(self, x: SimpleNamespace) -> tuple[float, float]:
        return 1 - x.how["epsilon_low"], 1 + x.how["epsilon_high"]

    def joined(self, free: Tensor, bounded: Tensor) -> Tensor:
        return torch.minimum(free, bounded)


class ClipGreater(_Clip):
    def joined(self, free: Tensor, bounded: Tensor) -> Tensor:
        return torch.maximum(free, bounded)


class ClipBoth(_Clip):
    def joined(self, free: Tensor, bounded: Tensor) -> Tensor:
        return bounded


class ClipThrough(_Clip):
    def joined(self, free: Tensor, bounded: Tensor) -> Tensor:
        return free + (torch.minimum(free, bounded) - free).detach()


class ClipZeroed(_Clip):
    def joined(self, free: Tensor, bounded: Tensor) -> Tensor:
        return torch.where(bounded < free, 0.0, free)


class ClipOneSide(_Clip):
    def bounds(self, x: SimpleNamespace) -> tuple[float, float]:
        return 0.0, super().bounds(x)[1]


class ClipOneSide2(_Clip):
    def bounds(self, x: SimpleNamespace) -> tuple[float, float]:
        return super().bounds(x)[0], float("inf")


class EpsilonSwapped(_Clip):
    def bounds(self, x: SimpleNamespace) -> tuple[float, float]:
        return 1 - x.how["epsilon_high"], 1 + x.how["epsilon_low"]


class EpsilonOther(_Clip):
    def bounds(self, x: SimpleNamespace) -> tuple[float, float]:
        return 1 - x.how["epsilon_low"] / 2, 1 + x.how["epsilon_high"] / 2


class EpsilonOther2(_Clip):
    def bounds(self, x: SimpleNamespace) -> tuple[float, float]:
        return 1 - x.how["epsilon_low"] * 2, 1 + x.how["epsilon_high"] * 2


class EpsilonReciprocal(_Clip):
    def bounds(self, x: SimpleNamespace) -> tuple[float, float]:
        high = 1 + x.how["epsilon_high"]
        return 1 / high, high


class ClipLogSpace(_Clip):
    def bounds(self, x: SimpleNamespace) -> tuple[float, float]:
        edges = torch.tensor([-x.how["epsilon_low"], x.how["epsilon_high"]]).double().exp()
        return float(edges[0]), float(edges[1])


class DualClipDropped2(Plain):
    def dual(self, x: SimpleNamespace, value: Tensor, a: Tensor) -> Tensor:
        return value


class DualClipAdded(Plain):
    def dual(self, x: SimpleNamespace, value: Tensor, a: Tensor) -> Tensor:
        if "delta" in x.how:
            return value
        return torch.where(a < 0, torch.maximum(value, x.how.get("dual_clip", 3.0) * a), value)


class CispoUncapped(Plain):
    def cispo(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return self.ratio(x).detach() * self.reinforce(x, a)


class CispoBound(Plain):
    def cispo(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        weight = self.ratio(x).clamp(1 - x.how["epsilon_low"], x.how["epsilon_high"])
        return weight.detach() * self.reinforce(x, a)


class CispoAsRatio(Plain):
    def cispo(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        low, high = 1 - x.how["epsilon_low"], 1 + x.how["epsilon_high"]
        return torch.minimum(self.ratio(x) * a, self.ratio(x).clamp(low, high) * a)


class CispoAsRatio2(Plain):
    def cispo(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return self.ratio(x).clamp(1 - x.how["epsilon_low"], 1 + x.how["epsilon_high"]) * a


class EpsilonHigh2(_Clip):
    """Both bounds follow the lower one's setting."""

    def bounds(self, x: SimpleNamespace) -> tuple[float, float]:
        return 1 - x.how["epsilon_low"], 1 + x.how["epsilon_low"]


class EpsilonHigh3(_Clip):
    """Both bounds follow the upper one's setting."""

    def bounds(self, x: SimpleNamespace) -> tuple[float, float]:
        return 1 - x.how["epsilon_high"], 1 + x.how["epsilon_high"]
