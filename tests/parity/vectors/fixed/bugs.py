"""Bugs that frameworks mended in 2025 and 2026, each as one function of ``trainer`` replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import trainer as right
from .trainer import RIGHT, Batch, Trainer


class Bug(NamedTuple):
    """One bug.

    Attributes:
        what: what is computed instead.
        thread: the issue or pull request that is about it, after ``https://github.com/``.
        mistake: its row in the catalogue of mistakes; "" where it has none.
        steps: the functions that are replaced.
    """

    what: str
    thread: str
    mistake: str
    steps: dict[str, Callable[..., Any]]

    def planted(self) -> Trainer:
        return replace(RIGHT, **self.steps)


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


RATIOS = (
    Bug("log-ratios clamped to ±20", "THUDM/slime/pull/2198", "ratio-clamped", _clamped(20.0)),
    Bug(
        "log-ratios clamped to ±10", "verl-project/verl/pull/1779", "ratio-clamped", _clamped(10.0)
    ),
    Bug(
        "log-ratios clamped to ±5",
        "anthonytorlucci/rlevo/issues/476",
        "ratio-clamped",
        _clamped(5.0),
    ),
    Bug(
        "old log-probs taken from the current policy",
        "meta-pytorch/torchforge/pull/571",
        "old-ignored",
        _prepared(_new_for_old),
    ),
    Bug(
        "the ratio is to the reference",
        "huggingface/trl/pull/2837",
        "ratio-policy",
        _prepared(_reference_for_old),
    ),
    Bug(
        "the difference of log-probs without its exponential",
        "XiaolongTang23/Plan-R1/issues/7",
        "ratio-without-exp",
        {"surrogate": lambda b, ratio: right.surrogate(b, ratio.log() + 1.0)},
    ),
    Bug(
        "the ratio is detached",
        "kengz/SLM-Lab/pull/207",
        "ratio-detached",
        _clip(lambda b, ratio: right.surrogate(b, ratio.detach()) + 0 * b.new),
    ),
    Bug(
        "the sequence's sum of log-ratios, not its mean",
        "MakazhanAlpamys/Soup/pull/744",
        "ratio-level",
        _sequence(lambda b: ((b.new - b.old) * b.mask).sum(1, keepdim=True).expand_as(b.mask)),
    ),
    Bug(
        "the sequence's mean is over the padded width",
        "modelscope/ms-swift/pull/6548",
        "ratio-width",
        _sequence(lambda b: ((b.new - b.old) * b.mask).mean(1, keepdim=True).expand_as(b.mask)),
    ),
    Bug(
        "token ratios in place of the sequence's",
        "hiyouga/EasyR1/pull/596",
        "ratio-level",
        {"log_ratio": lambda b: b.new - b.old},
    ),
    Bug(
        "log-ratios centred by column instead of averaged by row",
        "MakazhanAlpamys/Soup/issues/723",
        "",
        {"log_ratio": _of_columns},
    ),
)

SURROGATES = (
    Bug(
        "advantages clipped to ±5",
        "XueZeyue/DanceGRPO/issues/114",
        "advantage-clipped",
        _clipped(5.0),
    ),
    Bug(
        "advantages clipped to ±10", "NVIDIA-NeMo/RL/pull/3927", "advantage-clipped", _clipped(10.0)
    ),
    Bug(
        "only the clipped term's advantage is normalised",
        "pytorch/rl/pull/1033",
        "",
        _clip(_half_normalised),
    ),
    Bug(
        "the clipped term alone, without the minimum",
        "rasbt/reasoning-from-scratch/pull/240",
        "clip-both",
        _clip(lambda b, ratio: right.dual(b, -b.adv * ratio.clamp(*right.bounds(b)))),
    ),
    Bug(
        "the clipped term is computed, the other one averaged",
        "rllm-org/rllm/issues/81",
        "clip-unused",
        _clip(lambda b, ratio: right.dual(b, -b.adv * ratio)),
    ),
    Bug(
        "the minimum of the losses, not the maximum",
        "openai/spinningup/issues/255",
        "clip-greater",
        _clip(
            lambda b, ratio: right.dual(
                b, torch.minimum(-b.adv * ratio, -b.adv * ratio.clamp(*right.bounds(b)))
            )
        ),
    ),
    Bug(
        "the minimum of the ratios, then the advantage",
        "takuseno/ppo/issues/3",
        "minimum-before-advantage",
        _clip(_unsigned),
    ),
    Bug(
        "the upper bound follows the lower one's setting",
        "OpenPipe/ART/pull/132",
        "epsilon-high",
        _clip(_one_epsilon),
    ),
    Bug(
        "the two epsilons are exchanged",
        "PrimeIntellect-ai/prime-rl/pull/63",
        "epsilon-swapped",
        _clip(_swapped),
    ),
    Bug(
        "dual clip whatever the advantage's sign",
        "thu-ml/tianshou/issues/433",
        "dual-clip-positive",
        _clip(_dual_anywhere),
    ),
    Bug(
        "dual clip bounds from the other side",
        "agentscope-ai/Trinity-RFT/pull/340",
        "dual-clip-dropped",
        _clip(_dual_greater),
    ),
    Bug(
        "dual clip is not passed on", "THUDM/slime/pull/2247", "dual-clip-dropped", _clip(_no_dual)
    ),
    Bug(
        "cispo as a clipped ratio, without the log-prob",
        "allenai/open-instruct/pull/1269",
        "cispo-as-ratio",
        _cispo(lambda b, ratio: -ratio.clamp(*right.bounds(b)) * b.adv),
    ),
    Bug(
        "cispo's weight keeps its gradient",
        "linkedin/Liger-Kernel/pull/1054",
        "cispo-weight-gradient",
        _cispo(lambda b, ratio: -ratio.clamp(*right.bounds(b)) * b.adv * b.new),
    ),
    Bug(
        "cispo drops the gradient of capped tokens",
        "areal-project/AReaL/issues/1421",
        "cispo-gradient-cut",
        _cispo(_cispo_cut),
    ),
    Bug(
        "cispo's weight has no cap",
        "NovaSky-AI/SkyRL/pull/523",
        "cispo-uncapped",
        _cispo(lambda b, ratio: -ratio.detach() * b.adv * b.new),
    ),
)
