"""A plain torch loss through the plugin, in each precision: ``pytest plain_vectors.py``.

Written from the formulas, padded and masked as a trainer would, with ``where`` and not ``·mask``.
Each fixture is what an author writes; ``test_frameworks.py`` runs them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_cli.vectors import Case, Claims, Loss
from grpo_cli.vectors.claims import OPTIONS

SOFT = ["vespo", "dppo-tv", "dppo-kl", "kl-cov", "clip-cov"]
MEANS = ["token-mean", "response-mean", "token-sum", "token-sum-norm", "prompt-mean", "sum", "bnpo"]
BOUNDED = [
    f"{level}-{kind}"
    for level in ("token", "sequence", "geometric")
    for kind in ("truncate", "mask")
]
CLAIMS: dict[str, Any] = {
    "advantage": [
        *("given", "group-mean", "group-std", "batch-std"),
        *("leave-one-out", "leave-one-out-std"),
    ],
    "ratio": ["token", "sequence", "sequence-token", "product"],
    "surrogate": ["clip", "unclipped", "reinforce", "cispo", "sapo", "gmpo", *SOFT],
    "kl": ["none", "k1", "k2", "k3", "abs", "k1-in-reward"],
    "correction": ["none", *BOUNDED, "off-policy-mask"],
    "aggregate": MEANS,
    "split": ["none", "micro-batches", "ranks", "ranks and micro-batches"],
    "options": list(OPTIONS),
    "metrics": [
        *("kl", "clip_fraction_low", "clip_fraction_high", "clip_fraction", "dual_clip_fraction"),
        *("ratio_mean", "ppo_kl", "rollout_kl", "rollout_k3"),
    ],
    "refuses": {"log-prob-nan": "nan"},
    "conventions": {
        "empty-response": "counted",
        "no-tokens": "0",
        "singleton-group": "0",
        "masked-response": "votes",
        "rejected-tokens": "counted",
        "correction-on-kl": "no",
        "kl-weight-level": "the token's ratio",
        "kl-clamp": "none",
        "kl-overflow": "inf",
        "clip-fraction": "of the tokens",
        "entropy-aggregate": "as the policy",
    },
}


@pytest.fixture
def grpo_vectors_float64() -> Loss:
    return Loss(Plain(torch.float64), Claims(**CLAIMS))


@pytest.fixture
def grpo_vectors_float32() -> Loss:
    return Loss(Plain(torch.float32), Claims(**CLAIMS, dtype="float32"))


@pytest.fixture
def grpo_vectors_bfloat16() -> Loss:
    return Loss(Plain(torch.bfloat16), Claims(**CLAIMS, dtype="bfloat16"))


class Plain:
    """The loss. ``x`` has the columns of a case, its choices and its hyperparameters."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, case: Case) -> dict[str, Any]:
        x = case.arrays(torch.tensor, dtype=self.dtype)
        x.groups = torch.tensor(case.input["group_ids"])
        x.choices, x.how, x.step = case.choices, case.hyperparameters, case.step
        x.keep = x.mask.bool()
        if "surrogate" not in case.choices:
            return {"advantages": self.advantages(x)}
        x.new = x.log_probs_new.requires_grad_()
        x.old = x.new.detach() if x.log_probs_old is None else x.log_probs_old
        loss = self.loss(x)
        loss.backward()
        with torch.no_grad():
            logged = {
                name: torch.where(x.keep, value, 0.0).sum() / x.keep.sum()
                for name, value in self.metrics(x).items()
            }
        return {"loss": loss, "gradient": x.new.grad, "metrics": logged}

    def loss(self, x: SimpleNamespace) -> Tensor:
        a = x.advantages[:, None]
        term = getattr(self, x.choices["surrogate"].replace("-", "_"))(x, a)
        if x.choices["correction"] != "none":
            term = term * self.correction(x).detach()
        per_token = torch.where(x.keep, -term, 0.0)
        if x.choices["kl"] != "none":
            kl = self.estimate(x)
            if x.how.get("kl_weight") == "ratio":
                kl = self.difference(x, x.new, x.old).exp() * kl
            per_token = per_token + x.how["beta"] * torch.where(x.keep, kl, 0.0)
        if "entropy_coef" in x.how:
            per_token = per_token - x.how["entropy_coef"] * torch.where(x.keep, x.entropies, 0.0)
        return self.reduced(x, per_token)

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
            same = (x.groups[:, None] == x.groups[None, :]).to(self.dtype)
            per_token = per_token / (same @ x.keep.sum(1).to(self.dtype)).clamp(min=1)[:, None]
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

    # ---- advantages

    def advantages(self, x: SimpleNamespace) -> Tensor:
        scores = x.rewards
        if x.choices["kl"] == "k1-in-reward":
            gap = self.difference(x, x.log_probs_old, x.log_probs_ref)
            scores = x.rewards - x.how["beta"] * gap.sum(1)
        out = torch.zeros_like(scores)
        for group in x.groups.unique():
            members = (x.groups == group).nonzero()[:, 0]
            out[members] = self.within(x, scores[members], scores)
        return out

    def within(self, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor:
        centred = torch.where((r == r[0]).all(), torch.zeros_like(r), r - r.mean())
        choice = x.choices["advantage"]
        if choice == "group-mean":
            return centred
        if choice == "leave-one-out":
            return centred * len(r) / max(len(r) - 1, 1)
        if choice == "leave-one-out-std":
            return self.against_others(x, r)
        spread, ddof = batch if choice == "batch-std" else r, x.how.get("std_ddof", 1)
        sigma = spread.std(correction=ddof) if len(spread) > ddof else torch.tensor(0.0)
        return centred / (sigma + x.how["std_eps"])

    def against_others(self, x: SimpleNamespace, r: Tensor) -> Tensor:
        out = torch.zeros_like(r)
        for i in range(len(r)):
            others = torch.cat([r[:i], r[i + 1 :]])
            sigma, offset = others.std(), r[i] - others.mean()
            out[i] = offset / (sigma + x.how["std_eps"]) if sigma > 0 else offset
        return out

    # ---- the ratio, and how it is tamed

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
        value = torch.minimum(free, bounded)
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

    def vespo(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        k = torch.where(a >= 0, x.how["vespo_k_pos"], x.how["vespo_k_neg"]).to(self.dtype)
        rate = torch.where(a >= 0, x.how["vespo_lambda_pos"], x.how["vespo_lambda_neg"])
        log_ratio = self.log_ratio(x)
        phi = (k * log_ratio + rate.to(self.dtype) * (1 - log_ratio.exp())).exp()
        return phi.detach() * self.reinforce(x, a)

    def dppo_tv(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        return self.within_bounds(x, a, (x.new.exp() - x.old.exp()).abs())

    def dppo_kl(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        p, q = x.old.exp(), x.new.exp()
        divergence = p * (x.old - x.new) + (1 - p) * ((1 - p) / (1 - q)).log()
        return self.within_bounds(x, a, divergence)

    def within_bounds(self, x: SimpleNamespace, a: Tensor, divergence: Tensor) -> Tensor:
        bound = torch.where(a > 0, x.how["divergence_high"], x.how["divergence_low"])
        dropped = ((x.new > x.old) == (a > 0)) & (divergence > bound)
        return torch.where(dropped, 0.0, self.ratio(x) * a)

    def covariance(self, x: SimpleNamespace, a: Tensor) -> Tensor:
        height, flat = x.new.detach(), a.expand_as(x.new)
        return (flat - flat[x.keep].mean()) * (height - height[x.keep].mean())

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

    # ---- the engine that sampled, and the reference

    def engine_gap(self, x: SimpleNamespace) -> Tensor:
        return self.difference(x, x.old, x.log_probs_rollout)

    def correction(self, x: SimpleNamespace) -> Tensor:
        choice = x.choices["correction"]
        if choice == "off-policy-mask":
            gap = self.difference(x, x.log_probs_rollout, x.new.detach())
            behind = gap.sum(1) / self.lengths(x)[:, 0]
            dropped = (x.advantages < 0) & (behind > x.how["off_policy_mask_threshold"])
            return (~dropped).to(self.dtype)[:, None].expand_as(gap)
        level, _, kind = choice.rpartition("-")
        weight = self.weight(x, level, kind)
        if "is_batch_normalize" not in x.how:
            return weight
        of_responses = level == "sequence"
        return weight / (weight[x.keep.any(1), 0] if of_responses else weight[x.keep]).mean()

    def weight(self, x: SimpleNamespace, level: str, kind: str) -> Tensor:
        gap = self.engine_gap(x)
        total = gap.sum(1, keepdim=True)
        whole = {"token": gap, "sequence": total, "geometric": total / self.lengths(x)}[level]
        whole = whole.exp().expand_as(gap)
        low, high = x.how.get("is_low", 0.0), x.how.get("is_high", float("inf"))
        if kind == "truncate":
            return whole.clamp(low, high)
        kept = gap.exp() if level == "geometric" else whole
        return torch.where((whole >= low) & (whole <= high), kept, 0.0)

    def estimate(self, x: SimpleNamespace) -> Tensor:
        gap = self.difference(x, x.new, x.log_probs_ref)
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

    # ---- what is logged: means over the tokens that count

    def metrics(self, x: SimpleNamespace) -> dict[str, Tensor]:
        rho, found, a = self.ratio(x), {}, x.advantages[:, None]
        if "epsilon_low" in x.how:
            low = ((rho < 1 - x.how["epsilon_low"]) & (a < 0)).to(self.dtype)
            high = ((rho > 1 + x.how["epsilon_high"]) & (a > 0)).to(self.dtype)
            found = {"clip_fraction_low": low, "clip_fraction_high": high}
            found["clip_fraction"] = low + high
        if "dual_clip" in x.how:
            found["dual_clip_fraction"] = ((rho > x.how["dual_clip"]) & (a < 0)).to(self.dtype)
        if x.log_probs_ref is not None and x.choices["kl"] != "none":
            found["kl"] = self.estimate(x)
        if x.log_probs_rollout is not None:
            gap = self.engine_gap(x)
            found |= {"rollout_kl": -gap, "rollout_k3": gap.exp() - gap - 1}
        return found | {"ratio_mean": rho, "ppo_kl": self.difference(x, x.old, x.new)}
