"""Faults in what the sum is divided by."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from ..plain import Plain


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


class AllMasked(Plain):
    def reduced(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        return super().reduced(x, per_token) / (x.keep.sum() > 0)

    def lengths(self, x: SimpleNamespace) -> Tensor:
        return x.keep.sum(1, keepdim=True)

    def chosen(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        return per_token * x.keep


class OrderDependence(Plain):
    def reduced(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        place = torch.arange(len(per_token), dtype=self.dtype)[:, None]
        return super().reduced(x, per_token * (1 + place) / (1 + place.mean()))


class RejectedInDenominator(Plain):
    def reduced(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        if x.choices["correction"].endswith("mask"):
            kept = int((self.correction(x) != 0)[x.keep].sum())
            x.step = SimpleNamespace(**vars_of(x.step) | {"tokens": kept})
        return super().reduced(x, per_token)


def vars_of(step: object) -> dict[str, int]:
    return dict(vars(step))


class LengthSquared2(Plain):
    """Each row of a token sum is multiplied by its length."""

    def reduced(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        if x.choices["aggregate"] == "token-sum":
            per_token = per_token * self.lengths(x)
        return super().reduced(x, per_token)
