"""A plain torch loss of the family, in pieces, so that a fault can be planted in one of them.

Written from the formulas, padded and masked as a trainer would, with ``where`` and not ``·mask``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from grpo_cli.vectors import Case

from .advantages import Advantages
from .claims import claims
from .metrics import Metrics

__all__ = ["Plain", "claims"]


class Plain(Metrics, Advantages):
    """The loss. A planted fault replaces one method."""

    def __call__(self, case: Case) -> dict[str, Any]:
        x = case.arrays(torch.tensor, dtype=self.dtype)
        x.groups = torch.tensor(case.input["group_ids"])
        x.choices, x.how, x.step = case.choices, case.hyperparameters, case.step
        x.keep = self.mask(x)
        if "surrogate" not in case.choices:
            return {"advantages": self.advantages(x)}
        x.new = x.log_probs_new.requires_grad_()
        x.old = x.new.detach() if x.log_probs_old is None else x.log_probs_old
        loss = self.loss(x)
        loss.backward()
        return {"loss": loss, "gradient": x.new.grad, "metrics": self.metrics(x)}

    def loss(self, x: SimpleNamespace) -> Tensor:
        per_token = self.chosen(x, self.policy(x))
        if x.choices["kl"] != "none":
            per_token = per_token + x.how["beta"] * self.chosen(x, self.penalty(x))
        if "entropy_coef" in x.how:
            per_token = per_token - x.how["entropy_coef"] * self.heights(x)
        return self.reduced(x, per_token)

    def heights(self, x: SimpleNamespace) -> Tensor:
        return self.chosen(x, x.entropies)
