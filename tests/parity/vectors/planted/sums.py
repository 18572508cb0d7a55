"""More faults in the sum, and in what has a part in it."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from ..plain import Plain
from .reduction import vars_of


class MaskedCount(Plain):
    """Every position that is written counts."""

    def mask(self, x: SimpleNamespace) -> Tensor:
        keep = x.log_probs_new != 0
        x.step = SimpleNamespace(**vars_of(x.step) | {"tokens": int(keep.sum())})
        return keep


def without_edge(keep: Tensor, *, last: bool) -> Tensor:
    """The mask without the first or last token of each response."""
    place = keep.cumsum(1)
    return keep & (place < place[:, -1:] if last else place > 1)


class EdgeMasked(Plain):
    last = True

    def mask(self, x: SimpleNamespace) -> Tensor:
        keep = without_edge(super().mask(x), last=self.last)
        x.step = SimpleNamespace(**vars_of(x.step) | {"tokens": int(keep.sum())})
        return keep


class EdgeMasked2(EdgeMasked):
    last = False


class _Weighed(Plain):
    """Tokens that count otherwise in the sum, while the denominators stay."""

    def reduced(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        return super().reduced(x, per_token * self.times(x))

    def times(self, x: SimpleNamespace) -> Tensor:
        raise NotImplementedError


class EdgeToken(_Weighed):
    def times(self, x: SimpleNamespace) -> Tensor:
        return without_edge(x.keep, last=True).to(self.dtype)


class EdgeToken2(_Weighed):
    def times(self, x: SimpleNamespace) -> Tensor:
        return without_edge(x.keep, last=False).to(self.dtype)


class ResponseLost(_Weighed):
    def times(self, x: SimpleNamespace) -> Tensor:
        rows = torch.arange(len(x.keep))[:, None]
        return (rows < max(len(x.keep) - 1, 1)).to(self.dtype).expand_as(x.keep)


class AdvantageDiscounted(Plain):
    def term(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        left = x.keep.flip(1).cumsum(1).flip(1) - 1
        return super().term(x, a * 0.99 ** left.clamp(min=0))


class _Factor(Plain):
    """A constant on the loss, on its gradient, or on both."""

    value, slope = 1.0, 1.0

    def loss(self, x: SimpleNamespace) -> Tensor:
        found = super().loss(x)
        return found.detach() * self.value + (found - found.detach()) * self.slope


class LossSign(_Factor):
    value = slope = -1.0


class Factor(_Factor):
    value = slope = 2.0


class GradientFactor(_Factor):
    slope = 2.0


class LossFactor(_Factor):
    value = 2.0


class AccumulationMissing(Plain):
    """Each micro-batch is a whole loss, and they are added up."""

    def reduced(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        return super().reduced(x, per_token) * x.step.micro_batches


class MeanOfMeans2(Plain):
    """The token means of micro-batches, weighted by their responses."""

    def reduced(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        if x.choices["aggregate"] != "token-mean":
            return super().reduced(x, per_token)
        share = len(x.keep) / x.step.responses * x.step.ranks
        return per_token.sum() / x.keep.sum().clamp(min=1) * share


class _Denominator(Plain):
    """Another denominator in place of the right one, where the mode is among ``modes``."""

    modes: tuple[str, ...] = ()

    def reduced(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        if x.choices["aggregate"] not in self.modes:
            return super().reduced(x, per_token)
        return (per_token / self.size(x)).sum() * x.step.ranks

    def size(self, x: SimpleNamespace) -> Tensor | float:
        raise NotImplementedError


MEANS = ("token-mean", "response-mean", "token-sum", "token-sum-norm", "prompt-mean", "bnpo")


class DenominatorMissing(_Denominator):
    modes = MEANS

    def size(self, x: SimpleNamespace) -> float:
        return 1.0


class DenominatorMissing2(_Denominator):
    """The mean over responses alone is missing."""

    modes = ("response-mean",)

    def size(self, x: SimpleNamespace) -> Tensor:
        return self.lengths(x)


class NormWithoutResponses2(_Denominator):
    modes = ("token-sum",)

    def size(self, x: SimpleNamespace) -> float:
        return 1.0


class LocalCount(_Denominator):
    modes = ("token-mean",)

    def size(self, x: SimpleNamespace) -> Tensor:
        return x.keep.sum().clamp(min=1) * x.step.ranks


class ConstantLength(_Denominator):
    modes = ("token-mean", "response-mean")

    def size(self, x: SimpleNamespace) -> float:
        return x.step.responses * 8.0


class ConstantLength2(_Denominator):
    modes = ("token-sum-norm",)

    def size(self, x: SimpleNamespace) -> Tensor:
        return torch.tensor(float(max(x.step.tokens, 1)))


class PaddedLength(_Denominator):
    modes = ("token-mean", "response-mean")

    def size(self, x: SimpleNamespace) -> float:
        return float(x.step.responses * x.keep.shape[1])


class PaddedLength2(_Denominator):
    modes = ("token-sum-norm",)

    def size(self, x: SimpleNamespace) -> float:
        return float(x.step.responses * x.keep.shape[1])


class PaddedLength3(PaddedLength):
    modes = ("token-mean",)


class OneLess(Plain):
    def lengths(self, x: SimpleNamespace) -> Tensor:
        return (x.keep.sum(1, keepdim=True) - 1).clamp(min=1)


class OneLess2(Plain):
    def reduced(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        responses = max(x.step.responses - 1, 1)
        x.step = SimpleNamespace(**vars_of(x.step) | {"responses": responses})
        return super().reduced(x, per_token)


class RootLength(_Denominator):
    modes = ("response-mean",)

    def size(self, x: SimpleNamespace) -> Tensor:
        return self.lengths(x).sqrt() * x.step.responses


class GroupCount(_Denominator):
    modes = ("token-sum", "token-sum-norm")

    def size(self, x: SimpleNamespace) -> float:
        return float(x.step.groups * x.how.get("max_completion_length", 1))


class MaskIgnored2(Plain):
    """The token mean alone."""

    def chosen(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        return per_token if self.whole(x) else super().chosen(x, per_token)

    def difference(self, x: SimpleNamespace, above: Tensor, below: Tensor) -> Tensor:
        return above - below if self.whole(x) else super().difference(x, above, below)

    def whole(self, x: SimpleNamespace) -> bool:
        return x.choices.get("aggregate") == "token-mean"


class TruncatedInDenominator2(Plain):
    """The token mean alone."""

    def reduced(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        written = int((x.log_probs_new != 0).sum())
        if x.step.responses == len(x.keep):
            x.step = SimpleNamespace(**vars_of(x.step) | {"tokens": written})
        return super().reduced(x, per_token)


class _OneWay(Plain):
    """One mode taken for the other, and not the other way round."""

    wanted, taken = "response-mean", "token-mean"

    def reduced(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        if x.choices["aggregate"] == self.wanted:
            x.choices = {**x.choices, "aggregate": self.taken}
        return super().reduced(x, per_token)


class TokenForResponseMean2(_OneWay):
    pass


class TokenForResponseMean3(_OneWay):
    wanted, taken = "token-mean", "response-mean"


class AllMasked2(Plain):
    """A response without tokens divides by 0."""

    def lengths(self, x: SimpleNamespace) -> Tensor:
        return x.keep.sum(1, keepdim=True)
