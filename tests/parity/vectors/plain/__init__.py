"""A plain torch loss of the family, in pieces, so that a fault can be planted in one of them.

Written from the formulas, padded and masked as a trainer would, with ``where`` and not ``·mask``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from grpo_cli.vectors import Case, Claims
from grpo_cli.vectors.claims import OPTIONS

from .. import claims


def claims_of(dtype: str = "float64") -> Claims:
    return claims("plain", options=list(OPTIONS), dtype=dtype)


# ---- the loss, in pieces -------------------------------------------------------------------------


class Plain:
    """The loss. A planted fault replaces one method."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        self.dtype = dtype

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

    # ---- which tokens count, and how their terms become one number -------------------------------

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

    # ---- the ratio, and how it is tamed ----------------------------------------------------------

    def policy(self, x: SimpleNamespace) -> Tensor:
        a = x.advantages[:, None]
        term = self.term(x, a)
        if x.choices["correction"] != "none":
            term = term * self.correction(x).detach()
        return -term

    def term(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        surrogate: Tensor = getattr(self, x.choices["surrogate"].replace("-", "_"))(x, a)
        return surrogate

    def log_ratio(self, x: SimpleNamespace) -> Tensor:
        own = self.difference(x, x.new, x.old)
        level = x.choices["ratio"]
        if level == "token":
            return own
        if level == "product":
            return own.sum(1, keepdim=True).expand_as(own)
        mean = (own.sum(1, keepdim=True) / self.lengths(x)).expand_as(own)
        if level == "sequence":
            return mean
        return mean.detach() + self.difference(x, x.new, x.new.detach())

    def ratio(self, x: SimpleNamespace) -> Tensor:
        return self.log_ratio(x).exp()

    def clip(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        rho = self.ratio(x)
        bounded = rho.clamp(1 - x.how["epsilon_low"], 1 + x.how["epsilon_high"]) * a
        free = rho.clamp(max=x.how["delta"]) * a if "delta" in x.how else rho * a
        return self.dual(x, torch.minimum(free, bounded), a)

    def dual(self, x: SimpleNamespace, value: Tensor, a: Tensor) -> Tensor:
        if "dual_clip" not in x.how:
            return value
        return torch.where(a < 0, torch.maximum(value, x.how["dual_clip"] * a), value)

    def unclipped(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return self.ratio(x) * a

    def reinforce(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return torch.where(x.keep, x.new, 0.0) * a

    def cispo(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        weight = self.ratio(x).clamp(1 - x.how["epsilon_low"], 1 + x.how["epsilon_high"])
        return weight.detach() * self.reinforce(x, a)

    def sapo(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        tau = torch.where(a > 0, x.how["tau_pos"], x.how["tau_neg"]).to(self.dtype)
        return torch.sigmoid(tau * (self.ratio(x) - 1)) * 4 / tau * a

    def gmpo(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        d = self.difference(x, x.new, x.old)
        high, low = d.clamp(max=x.how["epsilon_high"]), d.clamp(min=-x.how["epsilon_low"])
        mean = torch.where(a > 0, high, low).sum(1, keepdim=True) / self.lengths(x)
        return (mean.exp() * a).expand_as(d)

    # ---- VESPO, DPPO, KL-Cov and Clip-Cov --------------------------------------------------------

    def vespo(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return self.phi(x, a).detach() * self.reinforce(x, a)

    def phi(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        k = torch.where(a >= 0, x.how["vespo_k_pos"], x.how["vespo_k_neg"]).to(self.dtype)
        rate = torch.where(a >= 0, x.how["vespo_lambda_pos"], x.how["vespo_lambda_neg"])
        log_ratio = self.log_ratio(x)
        return (k * log_ratio + rate.to(self.dtype) * (1 - log_ratio.exp())).exp()

    def dppo_tv(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return self.within_bounds(x, a, (x.new.exp() - x.old.exp()).abs())

    def dppo_kl(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        p, q = x.old.exp(), x.new.exp()
        divergence = p * (x.old - x.new) + (1 - p) * ((1 - p) / (1 - q)).log()
        return self.within_bounds(x, a, divergence)

    def within_bounds(self, x: SimpleNamespace, a: Tensor, divergence: Tensor) -> Tensor:
        bound = torch.where(a > 0, x.how["divergence_high"], x.how["divergence_low"])
        dropped = self.driven(x, a) & (divergence > bound)
        return torch.where(dropped, 0.0, self.ratio(x) * a)

    def driven(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return (x.new > x.old) == (a > 0)

    def covariance(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        height, flat = x.new.detach(), a.expand_as(x.new)
        kept = self.statistic(x)
        return (flat - flat[kept].mean()) * (height - height[kept].mean())

    def statistic(self, x: SimpleNamespace) -> Tensor:
        return x.keep

    def kl_cov(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        cov = self.covariance(x, a).masked_fill(~x.keep, -torch.inf)
        count = max(1, int(int(x.keep.sum()) * x.how["kl_cov_ratio"]))
        held = torch.zeros_like(x.keep).flatten()
        held[cov.flatten().topk(count).indices] = True
        moved = self.difference(x, x.new, x.old).abs()
        free = self.ratio(x) * a
        return torch.where(held.view_as(free), free - x.how["ppo_kl_coef"] * moved, free)

    def clip_cov(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        cov, value = self.covariance(x, a), self.clip(x, a)
        held = (cov > x.how["clip_cov_lb"]) & (cov < x.how["clip_cov_ub"])
        return torch.where(held & (value >= self.ratio(x) * a), 0.0, value)

    # ---- the weights of the correction, and the KL -----------------------------------------------

    def engine_gap(self, x: SimpleNamespace) -> Tensor:
        return self.difference(x, x.old, x.log_probs_rollout)

    def correction(self, x: SimpleNamespace) -> Tensor:
        if x.choices["correction"] == "off-policy-mask":
            return self.off_policy(x)
        weight = self.weight(x, x.choices["correction"])
        return weight / self.mean_weight(x, weight) if "is_batch_normalize" in x.how else weight

    def mean_weight(self, x: SimpleNamespace, weight: Tensor) -> Tensor:
        if x.choices["correction"].startswith("sequence"):
            return weight[x.keep.any(1), 0].mean()
        return weight[x.keep].mean()

    def weight(self, x: SimpleNamespace, choice: str) -> Tensor:
        level, _, kind = choice.rpartition("-")
        own = self.engine_gap(x).exp()
        whole = self.sequence_weight(x, level)
        low, high = x.how.get("is_low", 0.0), x.how.get("is_high", float("inf"))
        if kind == "truncate":
            return whole.clamp(low, high)
        kept = own if level == "geometric" else whole
        return torch.where((whole >= low) & (whole <= high), kept, 0.0)

    def sequence_weight(self, x: SimpleNamespace, level: str) -> Tensor:
        gap = self.engine_gap(x)
        if level == "token":
            return gap.exp()
        total = gap.sum(1, keepdim=True)
        return (total if level == "sequence" else total / self.lengths(x)).exp().expand_as(gap)

    def off_policy(self, x: SimpleNamespace) -> Tensor:
        gap = self.difference(x, x.log_probs_rollout, x.new.detach())
        behind = gap.sum(1) / self.lengths(x)[:, 0]
        dropped = (x.advantages < 0) & (behind > x.how["off_policy_mask_threshold"])
        return (~dropped).to(self.dtype)[:, None].expand_as(gap)

    def reference_gap(self, x: SimpleNamespace) -> Tensor:
        return self.difference(x, x.new, x.log_probs_ref)

    def estimate(self, x: SimpleNamespace) -> Tensor:
        gap = self.reference_gap(x)
        if "kl_input_clamp" in x.how:
            gap = gap.clamp(-x.how["kl_input_clamp"], x.how["kl_input_clamp"])
        estimates = {
            "k1": lambda: gap,
            "k2": lambda: gap**2 / 2,
            "k3": lambda: (-gap).exp() + gap - 1,
            "abs": lambda: gap.abs(),
        }
        value = estimates[x.choices["kl"]]()
        if "kl_output_clamp" in x.how:
            value = value.clamp(-x.how["kl_output_clamp"], x.how["kl_output_clamp"])
        return value

    def penalty(self, x: SimpleNamespace) -> Tensor:
        if x.how.get("kl_weight") != "ratio":
            return self.estimate(x)
        return self.difference(x, x.new, x.old).exp() * self.estimate(x)

    # ---- from rewards to advantages --------------------------------------------------------------

    def advantages(self, x: SimpleNamespace) -> Tensor:
        scores = self.scores(x)
        out = torch.zeros_like(scores)
        for group in self.grouped(x):
            out[group] = self.within(x, scores[group], scores)
        return out

    def scores(self, x: SimpleNamespace) -> Tensor:
        if x.choices["kl"] != "k1-in-reward":
            return x.rewards
        gap = self.difference(x, x.log_probs_old, x.log_probs_ref)
        return x.rewards - x.how["beta"] * gap.sum(1)

    def grouped(self, x: SimpleNamespace) -> list[Tensor]:
        return [(x.groups == group).nonzero()[:, 0] for group in x.groups.unique()]

    def within(self, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor:
        centred = torch.where((r == r[0]).all(), torch.zeros_like(r), r - r.mean())
        choice = x.choices["advantage"]
        if choice == "group-mean":
            return centred
        if choice == "leave-one-out":
            return centred * len(r) / max(len(r) - 1, 1)
        if choice == "leave-one-out-std":
            return self.against_others(x, r)
        return centred / (self.deviation(x, r, batch) + x.how["std_eps"])

    def deviation(self, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor:
        return self.std(x, batch if x.choices["advantage"] == "batch-std" else r)

    def std(self, x: SimpleNamespace, rewards: Tensor) -> Tensor:
        ddof = x.how.get("std_ddof", 1)
        return rewards.std(correction=ddof) if len(rewards) > ddof else torch.tensor(0.0)

    def against_others(self, x: SimpleNamespace, r: Tensor) -> Tensor:
        out = torch.zeros_like(r)
        for i in range(len(r)):
            others = torch.cat([r[:i], r[i + 1 :]])
            sigma = self.spread(others)
            offset = r[i] - others.mean()
            out[i] = offset / (sigma + x.how["std_eps"]) if self.divides(sigma) else offset
        return out

    def spread(self, others: Tensor) -> Tensor:
        return others.std()

    def divides(self, sigma: Tensor) -> bool:
        return bool(sigma > 0)

    # ---- what is logged --------------------------------------------------------------------------

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
