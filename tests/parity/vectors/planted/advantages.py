"""Faults between rewards and advantages."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from ..plain import Plain


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


class SingletonGroup(Plain):
    def within(self, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor:
        return r if len(r) == 1 else super().within(x, r, batch)


class MaskedResponseVotes(Plain):
    def grouped(self, x: SimpleNamespace) -> list[Tensor]:
        return [group[x.keep.any(1)[group]] for group in super().grouped(x)]
