"""More of them: the KL, the weights of a correction, entropy, denominators, masks, advantages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import trainer as right
from .bugs import only, rolled
from .trainer import Batch

Reduce = Callable[[Batch, Tensor], Tensor]


# ---- the KL --------------------------------------------------------------------------------------


def _kl(change: Callable[[Batch], Tensor]) -> dict[str, Any]:
    return {"kl": change}


def _after_all(b: Batch, loss: Tensor, penalty: Tensor, reduce: Reduce) -> Tensor:
    return reduce(b, loss) + penalty.mean()


def _k3(gap: Tensor) -> Tensor:
    return gap.exp() - gap - 1


def _reversed(b: Batch) -> Tensor:
    return {"k1": b.ref - b.new, "k2": right.kl(b), "k3": _k3(b.new - b.ref)}[b.kind["kl"]]


KLS = {
    "the KL's log-ratio the other way round": _kl(_reversed),
    "every estimator falls through to k3": _kl(lambda b: _k3(b.ref - b.new)),
    "the squared log-ratio, not half of it": _kl(lambda b: (b.ref - b.new) ** 2),
    "the KL is subtracted from the loss": _kl(lambda b: -right.kl(b)),
    "the KL is averaged apart, over padding too": {"add_kl": _after_all},
    "the KL's coefficient is not read": _kl(lambda b: 0 * b.new),
    "the KL's log-ratio is clamped to ±10, and so is the estimate": _kl(
        lambda b: right.kl(b).clamp(-10, 10)
    ),
    "the KL's log-ratio is clamped to ±5": _kl(
        lambda b: right.kl(_with(b, ref=b.new + (b.ref - b.new).clamp(-5, 5)))
    ),
    "the KL has a value and no gradient": _kl(lambda b: right.kl(b).detach()),
}


def _with(b: Batch, **changed: Any) -> Batch:
    return Batch(**(vars(b) | changed))


# ---- the weights of a correction -----------------------------------------------------------------


def _weighed(gap: Callable[[Batch], Tensor], *, held: bool = True) -> dict[str, Any]:
    """The right weights of another gap between the trainer and the engine."""

    def weights(b: Batch) -> Tensor:
        if b.kind["correction"] == "none":
            return torch.ones_like(b.mask)
        level, _, how = b.kind["correction"].partition("-")
        of = gap(b) * b.mask
        of = of.sum(1, keepdim=True).expand_as(of) if level == "sequence" else of
        weight, low, high = of.exp(), b.cfg.get("is_low", 0.0), b.cfg.get("is_high", torch.inf)
        if how == "truncate":
            weight = weight.clamp(low, high)
        else:
            weight = torch.where((weight >= low) & (weight <= high), weight, 0.0)
        return weight.detach() if held else weight

    return {"weights": weights}


def _mean_weight(b: Batch) -> Tensor:
    if not b.kind["correction"].startswith("sequence"):
        return right.weights(b)
    shared = (b.old - b.roll) / right.lengths(b)
    return right.weights(_with(b, old=shared, roll=torch.zeros_like(shared)))


def _untruncated(b: Batch) -> Tensor:
    if not b.kind["correction"].endswith("truncate"):
        return right.weights(b)
    return right.weights(_with(b, cfg={}))


CORRECTIONS = {
    "the weights keep their gradient, and are of the current policy": _weighed(
        lambda b: b.new - b.roll, held=False
    ),
    "the weights are of the current policy": _weighed(lambda b: b.new - b.roll),
    "a sequence's weight is of its mean log-ratio": {"weights": _mean_weight},
    "weights are not truncated": {"weights": _untruncated},
    "the weights never reach a sequence-level loss": {
        "weights": lambda b: (
            torch.ones_like(b.mask) if b.kind["aggregate"] == "response-mean" else right.weights(b)
        )
    },
    "the weights are not applied": {"weights": lambda b: torch.ones_like(b.mask)},
}


# ---- entropy -------------------------------------------------------------------------------------


def _unmasked_entropy(b: Batch, loss: Tensor, penalty: Tensor, reduce: Reduce) -> Tensor:
    total = reduce(b, loss + penalty)
    if "entropy_coef" not in b.cfg:
        return total
    return total - b.cfg["entropy_coef"] * (b.raw.sum() - b.entropies.sum()) / b.mask.sum()


def _keep_entropies(b: Batch) -> None:
    b.raw = b.entropies
    right.prepare(b)


ENTROPIES = {
    "the bonus is added to the loss": {"entropy": lambda b: -b.entropies},
    "the entropies of padding count": {"prepare": _keep_entropies, "add_kl": _unmasked_entropy},
    "the bonus is never added": {"entropy": lambda b: 0 * b.new},
}


# ---- denominators and masks ----------------------------------------------------------------------


def _mode(mode: str, reduce: Reduce) -> dict[str, Any]:
    return only("aggregate", mode, "aggregate", reduce)


def _local_tokens(b: Batch, loss: Tensor) -> Tensor:
    share = len(b.mask) / b.step.responses * b.step.ranks
    return (loss * b.mask).sum() / b.mask.sum().clamp(min=1) * share


def _local_mean(b: Batch, loss: Tensor) -> Tensor:
    return (loss * b.mask).sum() / b.mask.sum().clamp(min=1) / b.step.micro_batches


def _unclamped(b: Batch, loss: Tensor) -> Tensor:
    rows = (loss * b.mask).sum(1) / b.mask.sum(1)
    return rows.sum() / b.step.responses * b.step.ranks


def _unmasked_sum(b: Batch, loss: Tensor) -> Tensor:
    return loss.sum() / max(b.step.tokens, 1) * b.step.ranks


def _raw_inputs(b: Batch) -> None:
    """Nothing is taken out of the columns."""


def _written(b: Batch, loss: Tensor) -> Tensor:
    return (loss * b.mask).sum() / b.written.sum() * b.step.ranks * _part(b)


def _part(b: Batch) -> float:
    """The share of this micro-batch, by responses."""
    return len(b.mask) / b.step.responses


def _scaled(factor: Callable[[Batch], float], *modes: str) -> dict[str, Any]:
    def aggregate(b: Batch, loss: Tensor) -> Tensor:
        told = not modes or b.kind["aggregate"] in modes
        return right.aggregate(b, loss) * (factor(b) if told else 1.0)

    return {"aggregate": aggregate}


REDUCTIONS = {
    "the mean is over all positions of the padded batch": _mode(
        "token-mean", lambda b, loss: (loss * b.mask).mean() * b.step.ranks * _part(b)
    ),
    "the sequence mean is a token mean": _mode(
        "response-mean",
        lambda b, loss: (loss * b.mask).sum() / max(b.step.tokens, 1) * b.step.ranks,
    ),
    "the token mean averages the responses' means": _mode(
        "token-mean",
        lambda b, loss: (
            ((loss * b.mask).sum(1, keepdim=True) / right.lengths(b)).sum()
            / b.step.responses
            * b.step.ranks
        ),
    ),
    "the token mean's numerator is not masked": {
        "prepare": _raw_inputs,
        **_mode("token-mean", _unmasked_sum),
    },
    "masked tokens stay in the denominator": _mode("token-mean", _written),
    "the step's token mean is divided by the accumulation steps again": _scaled(
        lambda b: 1 / b.step.micro_batches
    ),
    "each micro-batch divides by its own tokens": _mode("token-mean", _local_mean),
    "micro-batches' token means are weighted by their responses": _mode(
        "token-mean", _local_tokens
    ),
    "the ranks' average is not undone": _scaled(lambda b: 1 / b.step.ranks),
    "sequence means are divided by the ranks twice": _scaled(
        lambda b: 1 / b.step.ranks**2, "response-mean", "token-sum"
    ),
    "the constant length alone divides, not the responses": _scaled(
        lambda b: b.step.responses, "token-sum-norm"
    ),
    "the batch's width for the constant length": _scaled(
        lambda b: b.cfg.get("max_completion_length", 1) / b.mask.shape[1], "token-sum-norm"
    ),
    "each row is multiplied by its length once more": _mode(
        "token-sum",
        lambda b, loss: right.aggregate(b, loss * b.mask.sum(1, keepdim=True)),
    ),
    "a response without tokens divides by 0": _mode("response-mean", _unclamped),
    "a constant number of tokens divides": _mode(
        "token-mean", lambda b, loss: (loss * b.mask).sum() / 8.0 * b.step.ranks
    ),
    "the mask is one position late": {"prepare": rolled},
}


# ---- advantages ----------------------------------------------------------------------------------


def _advantages(change: Callable[[Batch], Tensor]) -> dict[str, Any]:
    return {"advantages": change}


def _one_group(b: Batch) -> Tensor:
    return right.advantages(_with(b, groups=torch.zeros_like(b.groups)))


def _whitened(b: Batch) -> Tensor:
    a = right.advantages(b)
    return (a - a.mean()) / (a.std() + 1e-8)


def _batch_std(b: Batch) -> Tensor:
    kind = {**b.kind}
    if kind["advantage"] == "group-std":
        kind["advantage"] = "batch-std"
    return right.advantages(_with(b, kind=kind))


def _in_the_root(b: Batch) -> Tensor:
    if b.kind["advantage"] != "group-std":
        return right.advantages(b)
    centred = right.advantages(_with(b, kind={**b.kind, "advantage": "group-mean"}))
    return centred / (right.spread(b) ** 2 + b.cfg["std_eps"]).sqrt()


def _population(b: Batch) -> Tensor:
    return right.advantages(_with(b, cfg={**b.cfg, "std_ddof": 0}))


def _own_reward(b: Batch) -> Tensor:
    if b.kind["advantage"] != "leave-one-out":
        return right.advantages(b)
    return right.advantages(_with(b, kind={**b.kind, "advantage": "group-mean"}))


def _strided(b: Batch) -> Tensor:
    size = int((b.groups == b.groups[0]).sum())
    return right.advantages(_with(b, groups=torch.arange(len(b.groups)) // size))


ADVANTAGES = {
    "mean and std are over the batch": _advantages(_one_group),
    "the batch's std for the group's": _advantages(_batch_std),
    "normalised by group, then by batch": _advantages(_whitened),
    "the epsilon is inside the root": _advantages(_in_the_root),
    "the population's std": _advantages(_population),
    "the leave-one-out mean has the response in it": _advantages(_own_reward),
    "groups are every so many rows": _advantages(_strided),
    "not divided by the std": _advantages(
        lambda b: right.advantages(
            _with(
                b,
                kind={
                    **b.kind,
                    "advantage": b.kind["advantage"].replace("group-std", "group-mean"),
                },
            )
        )
    ),
}
