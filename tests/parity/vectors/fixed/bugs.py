"""Bugs that frameworks mended in 2025 and 2026, each as one function of ``trainer`` replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import trainer as right
from .trainer import Batch


def _prepared(change: Callable[[Batch], None]) -> dict[str, Callable[..., Any]]:
    """What is right, and a change of the batch after it."""

    def prepare(b: Batch) -> None:
        right.prepare(b)
        change(b)

    return {"prepare": prepare}


def only(stage: str, choice: str, step: str, wrong: Callable[..., Any]) -> dict[str, Any]:
    """The wrong function where a stage has the choice, the right one elsewhere."""
    usual = getattr(right, step)
    return {step: lambda b, *rest: (wrong if b.kind[stage] == choice else usual)(b, *rest)}


# ---- ratio and surrogate -------------------------------------------------------------------------


def _clamped(bound: float) -> dict[str, Any]:
    return {"log_ratio": lambda b: right.log_ratio(b).clamp(-bound, bound)}


def _clipped(bound: float) -> dict[str, Any]:
    def change(b: Batch) -> None:
        b.adv = b.adv.clamp(-bound, bound)

    return _prepared(change)


def _clip(term: Callable[[Batch, Tensor], Tensor]) -> dict[str, Any]:
    return only("surrogate", "clip", "surrogate", term)


def _one_epsilon(b: Batch, ratio: Tensor) -> Tensor:
    eps = b.cfg["epsilon_low"]
    return right.dual(b, torch.maximum(-b.adv * ratio, -b.adv * ratio.clamp(1 - eps, 1 + eps)))


def _swapped(b: Batch, ratio: Tensor) -> Tensor:
    low, high = right.bounds(b)
    return right.dual(b, torch.maximum(-b.adv * ratio, -b.adv * ratio.clamp(2 - high, 2 - low)))


def _dual_anywhere(b: Batch, ratio: Tensor) -> Tensor:
    loss = torch.maximum(-b.adv * ratio, -b.adv * ratio.clamp(*right.bounds(b)))
    return torch.minimum(loss, -b.adv * b.cfg["dual_clip"]) if "dual_clip" in b.cfg else loss


def _dual_greater(b: Batch, ratio: Tensor) -> Tensor:
    loss = torch.maximum(-b.adv * ratio, -b.adv * ratio.clamp(*right.bounds(b)))
    if "dual_clip" not in b.cfg:
        return loss
    return torch.where(b.adv < 0, torch.maximum(loss, -b.adv * b.cfg["dual_clip"]), loss)


def _no_dual(b: Batch, ratio: Tensor) -> Tensor:
    return torch.maximum(-b.adv * ratio, -b.adv * ratio.clamp(*right.bounds(b)))


def _half_normalised(b: Batch, ratio: Tensor) -> Tensor:
    whitened = (b.adv - b.adv.mean()) / (b.adv.std(correction=0) + 1e-8)
    clipped = -whitened * ratio.clamp(*right.bounds(b))
    return right.dual(b, torch.maximum(-b.adv * ratio, clipped))


def _unsigned(b: Batch, ratio: Tensor) -> Tensor:
    return right.dual(b, -b.adv * torch.minimum(ratio, ratio.clamp(*right.bounds(b))))


def _cispo(weight: Callable[[Batch, Tensor], Tensor]) -> dict[str, Any]:
    return only("surrogate", "cispo", "surrogate", weight)


def _cispo_cut(b: Batch, ratio: Tensor) -> Tensor:
    low, high = right.bounds(b)
    loss = right.surrogate(b, ratio)
    return torch.where((ratio < low) | (ratio > high), loss.detach(), loss)


def _of_columns(b: Batch) -> Tensor:
    gap = b.new - b.old
    if b.kind["ratio"] == "token":
        return gap
    return gap - (gap * b.mask).sum(0) / b.mask.sum(0).clamp(min=1)


def _sequence(log_ratio: Callable[[Batch], Tensor]) -> dict[str, Any]:
    return only("ratio", "sequence", "log_ratio", log_ratio)


def _new_for_old(b: Batch) -> None:
    b.old = b.new.detach()


def _reference_for_old(b: Batch) -> None:
    b.old = b.old if b.ref is None else b.ref


def rolled(b: Batch) -> None:
    b.mask = torch.roll(b.mask, 1, 1)
    right.prepare(b)


RATIOS = {
    "log-ratios clamped to ±20": _clamped(20.0),
    "log-ratios clamped to ±10": _clamped(10.0),
    "log-ratios clamped to ±5": _clamped(5.0),
    "old log-probs taken from the current policy": _prepared(_new_for_old),
    "the ratio is to the reference": _prepared(_reference_for_old),
    "the difference of log-probs without its exponential": {
        "surrogate": lambda b, ratio: right.surrogate(b, ratio.log() + 1.0)
    },
    "the ratio is detached": _clip(lambda b, ratio: right.surrogate(b, ratio.detach()) + 0 * b.new),
    "the sequence's sum of log-ratios, not its mean": _sequence(
        lambda b: ((b.new - b.old) * b.mask).sum(1, keepdim=True).expand_as(b.mask)
    ),
    "the sequence's mean is over the padded width": _sequence(
        lambda b: ((b.new - b.old) * b.mask).mean(1, keepdim=True).expand_as(b.mask)
    ),
    "token ratios in place of the sequence's": {"log_ratio": lambda b: b.new - b.old},
    "log-ratios centred by column instead of averaged by row": {"log_ratio": _of_columns},
}

SURROGATES = {
    "advantages clipped to ±5": _clipped(5.0),
    "advantages clipped to ±10": _clipped(10.0),
    "only the clipped term's advantage is normalised": _clip(_half_normalised),
    "the clipped term alone, without the minimum": _clip(
        lambda b, ratio: right.dual(b, -b.adv * ratio.clamp(*right.bounds(b)))
    ),
    "the clipped term is computed, the other one averaged": _clip(
        lambda b, ratio: right.dual(b, -b.adv * ratio)
    ),
    "the minimum of the losses, not the maximum": _clip(
        lambda b, ratio: right.dual(
            b, torch.minimum(-b.adv * ratio, -b.adv * ratio.clamp(*right.bounds(b)))
        )
    ),
    "the minimum of the ratios, then the advantage": _clip(_unsigned),
    "the upper bound follows the lower one's setting": _clip(_one_epsilon),
    "the two epsilons are exchanged": _clip(_swapped),
    "dual clip whatever the advantage's sign": _clip(_dual_anywhere),
    "dual clip bounds from the other side": _clip(_dual_greater),
    "dual clip is not passed on": _clip(_no_dual),
    "cispo as a clipped ratio, without the log-prob": _cispo(
        lambda b, ratio: -ratio.clamp(*right.bounds(b)) * b.adv
    ),
    "cispo's weight keeps its gradient": _cispo(
        lambda b, ratio: -ratio.clamp(*right.bounds(b)) * b.adv * b.new
    ),
    "cispo drops the gradient of capped tokens": _cispo(_cispo_cut),
    "cispo's weight has no cap": _cispo(lambda b, ratio: -ratio.detach() * b.adv * b.new),
}
