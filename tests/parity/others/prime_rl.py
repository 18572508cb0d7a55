"""prime-rl: its loss functions, summed and scaled by compute_loss, now and up to 0.9.0."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ..framework_sources import Clones
from .inputs import Case, Inputs, Loss

NAME = "PrimeIntellect-ai/prime-rl"
BEFORE = f"{NAME}@0.9.0"


def prime_rl_advantages(clones: Clones) -> Iterator[Case]:
    """score_group of GRPOAlgorithm, with the penalty on output tokens, and of MaxRLAlgorithm."""
    grpo, max_rl = (
        clones.load(
            BEFORE,
            f"src/prime_rl/orchestrator/algo/{file}.py",
            ["score_group"],
            iter_trainable_traces=lambda traces: ((None, trace) for trace in traces),
            assign_advantages=lambda trace, advantage: setattr(trace, "advantage", advantage),
        )
        for file in ("grpo", "max_rl")
    )

    def scored(x: Inputs, own: Any, penalty: Any = None) -> torch.Tensor:
        traces = [
            SimpleNamespace(reward=r, num_output_tokens=n, num_total_tokens=n + 7, num_turns=1)
            for r, n in zip(x.rewards.tolist(), x.lengths.tolist(), strict=True)
        ]
        for group in np.unique(x.batch.groups):
            few = [traces[i] for i in np.flatnonzero(x.batch.groups == group)]
            asyncio.run(own.score_group(SimpleNamespace(length_penalty=penalty), few))
        return torch.tensor([trace.advantage for trace in traces])[:, None].expand(x.mask.shape)

    row = "prime-rl/grpo@0.9.0"
    yield BEFORE, row, {}, {}, lambda x: scored(x, grpo)
    yield BEFORE, "prime-rl/max_rl@0.9.0", {}, {}, lambda x: scored(x, max_rl)
    for weight in (0.25, 2.0):
        penalty = SimpleNamespace(
            num_output_tokens_weight=weight, num_input_tokens_weight=0.0, num_turns_weight=0.0
        )
        stages = {"advantage": "prime-rl/length-penalty"}
        values = {"num_output_tokens_weight": weight}
        yield BEFORE, row, stages, values, lambda x, p=penalty: scored(x, grpo, p)


def prime_rl(clones: Clones) -> Iterator[Case]:
    """IPOLoss, IcePopLoss and ref_kl_loss_fn, summed and scaled by compute_loss."""
    own = loaded(clones, NAME, ["IPOLoss", "IcePopLoss"])
    fixed = {"adv_tau": 1.0, "score_centering": False}

    def run(eps: float = 0.3, kl_tau: float = 0.0, *, distil: bool = False) -> Loss:
        config = SimpleNamespace(eps=eps, kl_tau=kl_tau, **fixed)
        return _scaled(own, own.IPOLoss(config), distil=distil)

    for row in ("prime-rl/grpo", "prime-rl/ipo", "prime-rl/max_rl"):
        yield NAME, row, {}, {}, run()
    for eps in (0.02, 0.1):
        yield NAME, "prime-rl/ipo", {}, {"ipo_threshold": eps, "beta": 0.1}, run(eps, 0.1)
    for low, high in ((0.2, 5.0), (0.95, 1.05)):
        band = SimpleNamespace(ratio_low=low, ratio_high=high, adv_tau=1.0)
        bounds = {"is_low": low, "is_high": high}
        yield NAME, "prime-rl/icepop", {}, bounds, _scaled(own, own.IcePopLoss(band))
    yield NAME, "prime-rl/ref_kl", {}, {}, run(distil=True)


def prime_rl_earlier(clones: Clones) -> Iterator[Case]:
    """default_loss_fn and ipo_loss_fn, summed and scaled by compute_loss."""
    own = loaded(clones, BEFORE, ["default_loss_fn", "ipo_loss_fn"])

    def run(function: Any, **config: Any) -> Loss:
        settings = SimpleNamespace(adv_tau=1.0, **{"kl_tau": 1e-3, **config})
        return _scaled(own, lambda inputs: function(inputs, settings))

    default = {"dppo_mask_low": 0.2, "dppo_mask_high": 0.2}
    for row in ("prime-rl/dppo", "prime-rl/grpo@0.9.0", "prime-rl/max_rl@0.9.0"):
        yield BEFORE, row, {}, {}, run(own.default_loss_fn, **default)
    bounds = {"divergence_low": 0.02, "divergence_high": 0.05, "beta": 0.1}
    tight = {"dppo_mask_low": 0.02, "dppo_mask_high": 0.05, "kl_tau": 0.1}
    yield BEFORE, "prime-rl/dppo", {}, bounds, run(own.default_loss_fn, **tight)
    yield BEFORE, "prime-rl/ipo@0.9.0", {}, {}, run(own.ipo_loss_fn, ipo_threshold=0.1)


def loaded(clones: Clones, name: str, losses: list[str]) -> SimpleNamespace:
    return clones.load(
        name,
        "src/prime_rl/trainer/rl/loss.py",
        [
            "LossInputs",
            "LossOutputs",
            "_safe_mean",
            "compute_importance_ratio_and_mismatch_kl",
            "compute_loss",
            "ref_kl_loss_fn",
            *losses,
        ],
        field=field,
    )


def _scaled(own: SimpleNamespace, loss: Any, *, distil: bool = False) -> Loss:
    def value(x: Inputs) -> torch.Tensor:
        columns = [x.packed(table) for table in (x.new, x.gen, x.ref, x.advantages, x.mask.bool())]
        ones = [mask.double() for mask in columns[-1]]
        weights = ([torch.zeros_like(one) for one in ones], None, ones)
        tokens = int(x.mask.sum())
        return own.compute_loss(
            *columns,
            *(weights if distil else (None, None, None)),
            rl_loss_fn=loss,
            rl_scale=tokens,
            ce_scale=1,
            ref_kl_scale=tokens,
        )[0]

    return value
