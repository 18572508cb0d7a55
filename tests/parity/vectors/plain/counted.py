"""Which tokens count, and how their terms become one number."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor


class Counted:
    """What the mask keeps, and what it is divided by."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        self.dtype = dtype

    def mask(self, x: SimpleNamespace) -> Tensor:
        return x.mask.bool()

    def chosen(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        """0 where a token does not count, whatever stood there."""
        return torch.where(x.keep, per_token, 0.0)

    def difference(self, x: SimpleNamespace, above: Tensor, below: Tensor) -> Tensor:
        """The difference of two log-probs; masked tokens never reach an exponential."""
        return torch.where(x.keep, above, 0.0) - torch.where(x.keep, below, 0.0)

    def lengths(self, x: SimpleNamespace) -> Tensor:
        return x.keep.sum(1, keepdim=True).clamp(min=1)

    def reduced(self, x: SimpleNamespace, per_token: Tensor) -> Tensor:
        """The share of this micro-batch in the step's loss; ranks are averaged, so × ranks."""
        mode, step = x.choices["aggregate"], x.step
        if mode == "response-mean":
            per_token = per_token / self.lengths(x)
        if mode == "prompt-mean":
            per_token = per_token / self.group_tokens(x)
        count = {
            "token-mean": max(step.tokens, 1),
            "response-mean": step.responses,
            "token-sum": step.responses,
            "token-sum-norm": step.responses * x.how.get("max_completion_length", 1),
            "prompt-mean": step.groups,
            "sum": 1,
            "bnpo": max(int(x.keep.sum()), 1) * step.micro_batches * step.ranks,
        }[mode]
        return per_token.sum() / count * step.ranks

    def group_tokens(self, x: SimpleNamespace) -> Tensor:
        same = (x.groups[:, None] == x.groups[None, :]).to(self.dtype)
        return (same @ x.keep.sum(1).to(self.dtype)).clamp(min=1)[:, None]
