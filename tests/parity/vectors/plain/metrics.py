"""What is logged beside the loss."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from .reference import Reference
from .soft import Soft


class Metrics(Soft, Reference):
    """Means over the tokens that count."""

    def metrics(self, x: SimpleNamespace) -> dict[str, Tensor]:
        with torch.no_grad():
            return {name: self.logged(x, value) for name, value in self.values(x).items()}

    def logged(self, x: SimpleNamespace, value: Tensor) -> Tensor:
        return torch.where(x.keep, value, 0.0).sum() / x.keep.sum()

    def values(self, x: SimpleNamespace) -> dict[str, Tensor]:
        rho, found = self.ratio(x), {}
        if "epsilon_low" in x.how:
            low, high = self.bound(x, rho)
            found = {"clip_fraction_low": low, "clip_fraction_high": high}
            found["clip_fraction"] = low + high
        if "dual_clip" in x.how:
            held = (rho > x.how["dual_clip"]) & (x.advantages[:, None] < 0)
            found["dual_clip_fraction"] = held.to(self.dtype)
        if x.log_probs_ref is not None and x.choices["kl"] != "none":
            found["kl"] = self.estimate(x)
        if x.log_probs_rollout is not None:
            gap = self.engine_gap(x)
            found |= {"rollout_kl": -gap, "rollout_k3": gap.exp() - gap - 1}
        return found | {"ratio_mean": rho, "ppo_kl": self.difference(x, x.old, x.new)}

    def bound(self, x: SimpleNamespace, rho: Tensor) -> tuple[Tensor, Tensor]:
        a = x.advantages[:, None]
        low = (rho < 1 - x.how["epsilon_low"]) & (a < 0)
        high = (rho > 1 + x.how["epsilon_high"]) & (a > 0)
        return low.to(self.dtype), high.to(self.dtype)
