"""More faults in the advantages: of those given, and between rewards and advantages."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from ..plain import Plain


class _Given(Plain):
    """Advantages changed before the loss has them, computed or given."""

    def term(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return super().term(x, self.changed(x, a))

    def advantages(self, x: SimpleNamespace) -> Tensor:
        return self.changed(x, super().advantages(x)[:, None])[:, 0]

    def changed(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        raise NotImplementedError


class AdvantageSign(_Given):
    def changed(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return -a


class AdvantageOneSided(_Given):
    def changed(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return a.abs()


class AdvantageOneSided2(_Given):
    def changed(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return a.sign()


class AdvantageOneSided3(_Given):
    def changed(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return a.clamp(min=0)


class AdvantageOneSided4(_Given):
    def changed(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return a.clamp(max=0)


class AdvantageOrder(_Given):
    def changed(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return a.roll(1, 0)


class AdvantageBroadcast(_Given):
    def changed(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return a[:1].expand_as(a)


class AdvantageTwice(_Given):
    def changed(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return (a - a.mean()) / (a.std() + 1e-8) if len(a) > 1 else a


class AdvantageTwice2(AdvantageTwice):
    """Of those that are computed alone."""

    def term(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return Plain.term(self, x, a)


class AdvantageLength(_Given):
    def changed(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return a * self.lengths(x)


class AdvantageLength2(_Given):
    def changed(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return a / self.lengths(x)


class _Bounded(_Given):
    limit = 1.0

    def changed(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return a.clamp(-self.limit, self.limit)


class AdvantageClipped(_Bounded):
    limit = 10.0


class AdvantageClipped2(_Bounded):
    limit = 5.0


class AdvantageClipped3(_Bounded):
    limit = 1.0


class AdvantageOffset(_Given):
    def changed(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return a + 0.25


class AdvantageScaled(_Given):
    def changed(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return a * 2


class AdvantageRounded(_Given):
    def changed(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return a.to(torch.bfloat16).to(a.dtype)


# ---- from rewards --------------------------------------------------------------------------------


class Centre(Plain):
    """No baseline: the reward itself, scaled as it should be."""

    def within(self, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor:
        if x.choices["advantage"] in ("group-std", "batch-std"):
            return r / (self.deviation(x, r, batch) + x.how["std_eps"])
        return r


class Centre2(Plain):
    def within(self, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor:
        offset = r.quantile(0.5) - r.mean()
        scale = 1.0
        if x.choices["advantage"] in ("group-std", "batch-std"):
            scale = self.deviation(x, r, batch) + x.how["std_eps"]
        return super().within(x, r, batch) - offset / scale


class LeaveOneOut(Plain):
    def within(self, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor:
        if x.choices["advantage"] == "leave-one-out":
            x.choices = {**x.choices, "advantage": "group-mean"}
        return super().within(x, r, batch)


class LeaveOneOut2(Plain):
    def within(self, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor:
        found = super().within(x, r, batch)
        if x.choices["advantage"] in ("leave-one-out", "leave-one-out-std"):
            return found
        return found * len(r) / max(len(r) - 1, 1)


class ScaleOther(Plain):
    def std(self, x: SimpleNamespace, rewards: Tensor) -> Tensor:
        return super().std(x, rewards) ** 2


class ScaleOther2(Plain):
    def std(self, x: SimpleNamespace, rewards: Tensor) -> Tensor:
        return rewards.max() - rewards.min()


class ScaleOther3(Plain):
    def std(self, x: SimpleNamespace, rewards: Tensor) -> Tensor:
        return (rewards - rewards.mean()).abs().mean()


class StdEps(Plain):
    def std(self, x: SimpleNamespace, rewards: Tensor) -> Tensor:
        eps = x.how["std_eps"]
        return (super().std(x, rewards) ** 2 + eps).sqrt() - eps


class StdEps2(Plain):
    def std(self, x: SimpleNamespace, rewards: Tensor) -> Tensor:
        return super().std(x, rewards) - x.how["std_eps"] + 1e-2


class StdOrNot2(Plain):
    """The std of a group left out."""

    def deviation(self, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor:
        whole = x.choices["advantage"] == "batch-std"
        found = super().deviation(x, r, batch)
        return found if whole else torch.ones_like(found) - x.how["std_eps"]


class StdOrNot3(Plain):
    """Divided where it should only be centred."""

    def within(self, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor:
        found = super().within(x, r, batch)
        if x.choices["advantage"] not in ("group-mean", "leave-one-out"):
            return found
        return found / (self.std(x, r) + 1e-4)


class StdLevel2(Plain):
    """The batch's for the group's, and not the other way round."""

    def deviation(self, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor:
        return self.std(x, batch)


class StdDdof2(Plain):
    """The population's everywhere."""

    def std(self, x: SimpleNamespace, rewards: Tensor) -> Tensor:
        return rewards.std(correction=0)
