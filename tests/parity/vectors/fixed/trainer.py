"""A GRPO loss as a trainer has it, in torch: a file of functions, padded and masked.

It knows nothing of ``plain``, from which the cases' records of what fails are made: a bug that is
planted here shows whether a stranger's code is found and named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from grpo_cli.vectors import Case, Claims

Batch = SimpleNamespace
"""Columns [R, T], ``adv`` [R, 1], ``mask`` as 0.0 and 1.0; ``cfg``, ``kind`` and ``step``."""


@dataclass(frozen=True)
class Trainer:
    """The loss as its functions; a bug is one of them replaced."""

    prepare: Callable[[Batch], None]
    advantages: Callable[[Batch], Tensor]
    log_ratio: Callable[[Batch], Tensor]
    surrogate: Callable[[Batch, Tensor], Tensor]
    weights: Callable[[Batch], Tensor]
    kl: Callable[[Batch], Tensor]
    entropy: Callable[[Batch], Tensor]
    aggregate: Callable[[Batch, Tensor], Tensor]
    add_kl: Callable[[Batch, Tensor, Tensor, Callable[[Batch, Tensor], Tensor]], Tensor]

    def __call__(self, case: Case) -> dict[str, Any]:
        b = case.arrays(torch.tensor, dtype=torch.float64)
        b.cfg, b.kind, b.step = case.hyperparameters, case.choices, case.step
        b.mask = b.mask.clone()
        b.written = torch.zeros_like(b.mask)
        for row, counted in zip(b.written, case.input["mask"], strict=True):
            row[: len(counted)] = 1.0
        b.groups = torch.tensor(case.input["group_ids"])
        if "surrogate" not in case.choices:
            return {"advantages": self.advantages(b)}
        b.adv = b.advantages[:, None]
        leaf = b.log_probs_new.requires_grad_()
        b.new, b.ref, b.roll = leaf, b.log_probs_ref, b.log_probs_rollout
        b.old = leaf.detach() if b.log_probs_old is None else b.log_probs_old
        self.prepare(b)
        ratio = self.log_ratio(b).exp()
        loss = self.surrogate(b, ratio) * self.weights(b)
        penalty = b.cfg["beta"] * self.kl(b) if b.kind["kl"] != "none" else torch.zeros_like(loss)
        if "entropy_coef" in b.cfg:
            loss = loss - b.cfg["entropy_coef"] * self.entropy(b)
        total = self.add_kl(b, loss, penalty, self.aggregate)
        total.backward()
        return {"loss": total, "gradient": leaf.grad}


def prepare(b: Batch) -> None:
    """Whatever stands at masked positions is 0 from here on."""
    keep = b.mask.bool()
    for name in ("new", "old", "ref", "roll", "entropies"):
        if getattr(b, name) is not None:
            setattr(b, name, torch.where(keep, getattr(b, name), 0.0))


def per_group(b: Batch, score: Callable[[Tensor], Tensor]) -> Tensor:
    out = torch.zeros_like(b.rewards)
    for group in b.groups.unique():
        own = b.groups == group
        out[own] = score(b.rewards[own])
    return out


def advantages(b: Batch) -> Tensor:
    centred = per_group(b, lambda r: r - r.mean() if (r != r[0]).any() else r * 0.0)
    if b.kind["advantage"] == "group-mean":
        return centred
    if b.kind["advantage"] == "leave-one-out":
        return per_group(b, lambda r: (r - r.mean()) * len(r) / max(len(r) - 1, 1))
    return centred / (spread(b) + b.cfg["std_eps"])


def spread(b: Batch) -> Tensor:
    ddof = b.cfg["std_ddof"]
    if b.kind["advantage"] == "batch-std":
        return b.rewards.std(correction=ddof)
    return per_group(b, lambda r: r.std(correction=ddof) if len(r) > ddof else r[0] * 0.0)


def lengths(b: Batch) -> Tensor:
    return b.mask.sum(1, keepdim=True).clamp(min=1.0)


def log_ratio(b: Batch) -> Tensor:
    gap = b.new - b.old
    if b.kind["ratio"] == "token":
        return gap
    return ((gap * b.mask).sum(1, keepdim=True) / lengths(b)).expand_as(gap)


def bounds(b: Batch) -> tuple[float, float]:
    return 1.0 - b.cfg["epsilon_low"], 1.0 + b.cfg["epsilon_high"]


def surrogate(b: Batch, ratio: Tensor) -> Tensor:
    if b.kind["surrogate"] == "cispo":
        return -ratio.clamp(*bounds(b)).detach() * b.adv * b.new
    if b.kind["surrogate"] == "reinforce":
        return -b.adv * b.new
    return dual(b, torch.maximum(-b.adv * ratio, -b.adv * ratio.clamp(*bounds(b))))


def dual(b: Batch, loss: Tensor) -> Tensor:
    if "dual_clip" not in b.cfg:
        return loss
    return torch.where(b.adv < 0, torch.minimum(loss, -b.adv * b.cfg["dual_clip"]), loss)


def weights(b: Batch) -> Tensor:
    """The trainer's old policy against the engine that sampled."""
    if b.kind["correction"] == "none":
        return torch.ones_like(b.mask)
    level, _, how = b.kind["correction"].partition("-")
    gap = (b.old - b.roll) * b.mask
    if level == "sequence":
        gap = gap.sum(1, keepdim=True).expand_as(gap)
    weight, low, high = gap.exp(), b.cfg.get("is_low", 0.0), b.cfg.get("is_high", torch.inf)
    if how == "truncate":
        return weight.clamp(low, high).detach()
    return torch.where((weight >= low) & (weight <= high), weight, 0.0).detach()


def kl(b: Batch) -> Tensor:
    gap = b.ref - b.new
    return {"k1": -gap, "k2": gap**2 / 2, "k3": gap.exp() - gap - 1}[b.kind["kl"]]


def entropy(b: Batch) -> Tensor:
    return b.entropies


def aggregate(b: Batch, loss: Tensor) -> Tensor:
    """This micro-batch's share; its rank's gradient is averaged with the others'."""
    rows, mode = (loss * b.mask).sum(1, keepdim=True), b.kind["aggregate"]
    if mode == "response-mean":
        rows = rows / lengths(b)
    whole = {
        "token-mean": max(b.step.tokens, 1),
        "response-mean": b.step.responses,
        "token-sum": b.step.responses,
        "token-sum-norm": b.step.responses * b.cfg.get("max_completion_length", 1),
    }[mode]
    return rows.sum() / whole * b.step.ranks


def add_kl(
    b: Batch, loss: Tensor, penalty: Tensor, reduce: Callable[[Batch, Tensor], Tensor]
) -> Tensor:
    return reduce(b, loss + penalty)


RIGHT = Trainer(prepare, advantages, log_ratio, surrogate, weights, kl, entropy, aggregate, add_kl)

WIDE = Claims(
    surrogate=["clip", "cispo", "reinforce"],
    aggregate=["token-mean", "response-mean", "token-sum", "token-sum-norm"],
    advantage=["given", "group-mean", "group-std", "batch-std", "leave-one-out"],
    ratio=["token", "sequence"],
    kl=["none", "k1", "k2", "k3"],
    correction=["none", "token-truncate", "token-mask", "sequence-truncate", "sequence-mask"],
    split=["none", "micro-batches", "ranks", "ranks and micro-batches"],
    options=["dual_clip", "entropy_coef"],
)
NARROW = Claims(surrogate="clip", kl=["none", "k3"], aggregate="token-mean")
"""A project's one loss, as the page of the vectors has it."""
