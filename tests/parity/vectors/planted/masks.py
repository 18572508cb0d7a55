"""Faults in what does not count."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from ..plain import Plain


class MaskIgnored(Plain):
    def chosen(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        return per_token

    def difference(self, x: SimpleNamespace, above: Tensor, below: Tensor) -> Tensor:
        return above - below


class MaskedNan(Plain):
    def chosen(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        return per_token * x.keep

    def difference(self, x: SimpleNamespace, above: Tensor, below: Tensor) -> Tensor:
        return (above - below) * x.keep

    def reinforce(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return x.new * a


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

    def statistic(self, x: SimpleNamespace) -> Tensor:
        return torch.ones_like(x.keep)

    def mean_weight(self, x: SimpleNamespace, weight: Tensor) -> Tensor:
        return weight.mean()


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


class ZeroFilled(Plain):
    def mask(self, x: SimpleNamespace) -> Tensor:
        for name in ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout"):
            column = getattr(x, name)
            if column is not None:
                setattr(x, name, column.nan_to_num(0.0))
        return super().mask(x)
