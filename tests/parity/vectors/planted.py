"""Faults planted in the plain loss, one for each flag: ``BUGS`` has the loss with it.

Each fault is the one that the flag's thread is about, in the piece of the loss it was in.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from .plain import Plain


class AccumulationTwice(Plain):
    def reduced(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        return super().reduced(x, per_token) / x.step.micro_batches


class MeanOfMeans(Plain):
    def reduced(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        step = vars_of(x.step) | {"tokens": int(x.keep.sum()), "responses": len(x.keep)}
        step |= {"groups": len(x.groups.unique()), "ranks": 1}
        whole, x.step = x.step, SimpleNamespace(**step)
        return super().reduced(x, per_token) / whole.micro_batches

    def logged(self, x: SimpleNamespace, value: Tensor) -> Tensor:
        kept = torch.where(x.keep, value, 0.0).sum(1, keepdim=True)
        return (kept / self.lengths(x)).mean()


class TruncatedInDenominator(Plain):
    def reduced(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        x.step = SimpleNamespace(**vars_of(x.step) | {"tokens": int(x.width.sum())})
        return super().reduced(x, per_token)

    def mask(self, x: SimpleNamespace) -> Tensor:
        x.width = (x.log_probs_new != 0).sum(1)
        return super().mask(x)

    def lengths(self, x: SimpleNamespace) -> Tensor:
        return x.width[:, None].clamp(min=1)

    def group_tokens(self, x: SimpleNamespace) -> Tensor:
        keep, x.keep = x.keep, x.log_probs_new != 0
        tokens = super().group_tokens(x)
        x.keep = keep
        return tokens


class EmptyResponseCounted(Plain):
    def reduced(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        counted = int(x.keep.sum(1).clamp(min=1).sum())
        responses = int(x.keep.any(1).sum()) if len(x.keep) == x.step.responses else 0
        step = vars_of(x.step) | {"tokens": counted, "responses": responses or x.step.responses}
        x.step = SimpleNamespace(**step)
        return super().reduced(x, per_token)

    def group_tokens(self, x: SimpleNamespace) -> Tensor:
        same = (x.groups[:, None] == x.groups[None, :]).to(self.dtype)
        return (same @ self.lengths(x).to(self.dtype)).clamp(min=1)


class MaskIgnored(Plain):
    def chosen(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        return per_token

    def difference(self, x: SimpleNamespace, above: Tensor, below: Tensor) -> Tensor:
        return above - below


class AllMasked(Plain):
    def reduced(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        return super().reduced(x, per_token) / (x.keep.sum() > 0)


class MaskedNan(Plain):
    def chosen(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        return per_token * x.keep

    def difference(self, x: SimpleNamespace, above: Tensor, below: Tensor) -> Tensor:
        return (above - below) * x.keep


class MaskedNanSequence(MaskedNan):
    def chosen(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        return per_token * x.keep if self.by_response(x) else Plain.chosen(self, x, per_token)

    def difference(self, x: SimpleNamespace, above: Tensor, below: Tensor) -> Tensor:
        kind = MaskedNan if self.by_response(x) else Plain
        return kind.difference(self, x, above, below)

    def by_response(self, x: SimpleNamespace) -> bool:
        return x.choices.get("aggregate") == "response-mean"


class MaskedNanKl(Plain):
    def reference_gap(self, x: SimpleNamespace) -> Tensor:
        return x.new - x.log_probs_ref

    def chosen(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        return per_token * x.keep


class MaskedOverflow(Plain):
    def difference(self, x: SimpleNamespace, above: Tensor, below: Tensor) -> Tensor:
        return above - below

    def chosen(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        return per_token * x.keep


class MaskedTokenLeak(Plain):
    def difference(self, x: SimpleNamespace, above: Tensor, below: Tensor) -> Tensor:
        return above - below


class MaskShifted(Plain):
    def mask(self, x: SimpleNamespace) -> Tensor:
        return torch.roll(x.mask, 1, 1).bool()


class PackedBoundary(Plain):
    """The log-probs of the packed responses are rolled, and the last one takes the next one's."""

    def mask(self, x: SimpleNamespace) -> Tensor:
        keep = super().mask(x)
        if x.log_probs_old is not None:
            packed = x.log_probs_old[keep]
            ends = keep.sum(1).cumsum(0)[:-1]
            ends = ends[(ends > 0) & (ends < len(packed))]
            packed[ends - 1] = packed[ends].clone()
            x.log_probs_old = x.log_probs_old.masked_scatter(keep, packed)
        return keep


class NormWithoutResponses(Plain):
    def reduced(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        if x.choices["aggregate"] == "token-sum-norm":
            x.step = SimpleNamespace(**vars_of(x.step) | {"responses": 1})
        return super().reduced(x, per_token)


class BatchForPrompt(Plain):
    def group_tokens(self, x: SimpleNamespace) -> Tensor:
        return x.keep.sum().clamp(min=1) / x.step.groups


class TokenForResponseMean(Plain):
    def reduced(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        swap = {"response-mean": "token-mean", "token-mean": "response-mean"}
        mode = x.choices["aggregate"]
        x.choices = {**x.choices, "aggregate": swap.get(mode, "response-mean")}
        return super().reduced(x, per_token)


class SequenceBroadcast(Plain):
    def reduced(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        sequence = x.choices["ratio"] != "token" or x.choices["surrogate"] == "gmpo"
        if sequence and x.choices["aggregate"] == "response-mean":
            per_token = per_token * self.lengths(x)
        return super().reduced(x, per_token)

    def logged(self, x: SimpleNamespace, value: Tensor) -> Tensor:
        if x.choices["ratio"] == "token":
            return super().logged(x, value)
        return value[:, 0].mean()


class LengthSquared(Plain):
    def reduced(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        if x.choices["aggregate"] in ("token-sum", "sum"):
            per_token = per_token * self.lengths(x) / x.keep.shape[1]
        return super().reduced(x, per_token)


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


class GmpoTwoSided(Plain):
    def gmpo(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        d = self.difference(x, x.new, x.old).clamp(-x.how["epsilon_low"], x.how["epsilon_high"])
        return ((d.sum(1, keepdim=True) / self.lengths(x)).exp() * a).expand_as(d)


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


class RejectedInDenominator(Plain):
    def reduced(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        if x.choices["correction"].endswith("mask"):
            kept = int((self.correction(x) != 0)[x.keep].sum())
            x.step = SimpleNamespace(**vars_of(x.step) | {"tokens": kept})
        return super().reduced(x, per_token)


class SingletonGroup(Plain):
    def within(self, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor:
        return r if len(r) == 1 else super().within(x, r, batch)


class MaskedResponseVotes(Plain):
    def grouped(self, x: SimpleNamespace) -> list[Tensor]:
        return [group[x.keep.any(1)[group]] for group in super().grouped(x)]


class CorrectionDropped(Plain):
    def correction(self, x: SimpleNamespace) -> Tensor:
        return torch.ones_like(x.new)


class CorrectionGradient(Plain):
    def policy(self, x: SimpleNamespace) -> Tensor:
        a = x.advantages[:, None]
        term = getattr(self, x.choices["surrogate"])(x, a)
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


class GroupStride(Plain):
    def grouped(self, x: SimpleNamespace) -> list[Tensor]:
        size = len(super().grouped(x)[0])
        return list(torch.arange(len(x.groups)).split(size))


class BatchAsOneGroup(Plain):
    def grouped(self, x: SimpleNamespace) -> list[Tensor]:
        return [torch.arange(len(x.groups))]


class LeaveOneOutZeroStd(Plain):
    def divides(self, sigma: Tensor) -> bool:
        return True


class ZeroStdNoise(Plain):
    def within(self, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor:
        noise = torch.arange(len(r), dtype=r.dtype) * 1e-7
        return super().within(x, r + noise, batch)


class StdOrNot(Plain):
    def within(self, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor:
        value, sigma = super().within(x, r, batch), self.std(x, r)
        return value * sigma if x.choices["advantage"] == "group-std" else value / (sigma + 1e-4)


class StdDdof(Plain):
    def spread(self, others: Tensor) -> Tensor:
        return others.std(correction=0)

    def deviation(self, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor:
        return r.std(correction=1 - x.how["std_ddof"])


class StdLevel(Plain):
    def deviation(self, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor:
        return self.std(x, r if x.choices["advantage"] == "batch-std" else batch)


class OrderDependence(Plain):
    def reduced(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        place = torch.arange(len(per_token), dtype=self.dtype)[:, None]
        return super().reduced(x, per_token * (1 + place) / (1 + place.mean()))


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


class ZeroFilled(Plain):
    def mask(self, x: SimpleNamespace) -> Tensor:
        for name in ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout"):
            column = getattr(x, name)
            if column is not None:
                setattr(x, name, column.nan_to_num(0.0))
        return super().mask(x)


def vars_of(step: object) -> dict[str, int]:
    return dict(vars(step))


def flag_of(bug: type) -> str:
    """``MeanOfMeans`` → ``mean-of-means``."""
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in bug.__name__).removeprefix("-")


BUGS: dict[str, type[Plain]] = {
    flag_of(bug): bug
    for bug in list(globals().values())
    if isinstance(bug, type) and issubclass(bug, Plain) and bug is not Plain
}
"""Flag → the loss with that fault."""
