"""prime-rl: its three loss functions, summed and scaled by compute_loss."""

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


def prime_rl_advantages(clones: Clones) -> Iterator[Case]:
    """GRPOAlgorithm.score_group, with the penalty on output tokens alone."""
    name = "PrimeIntellect-ai/prime-rl"
    own = clones.load(
        name,
        "src/prime_rl/orchestrator/algo/grpo.py",
        ["score_group"],
        iter_trainable_traces=lambda traces: ((None, trace) for trace in traces),
        assign_advantages=lambda trace, advantage: setattr(trace, "advantage", advantage),
    )

    def scored(x: Inputs, penalty: Any) -> torch.Tensor:
        traces = [
            SimpleNamespace(reward=r, num_output_tokens=n, num_total_tokens=n + 7, num_turns=1)
            for r, n in zip(x.rewards.tolist(), x.lengths.tolist(), strict=True)
        ]
        for group in np.unique(x.batch.groups):
            few = [traces[i] for i in np.flatnonzero(x.batch.groups == group)]
            asyncio.run(own.score_group(SimpleNamespace(length_penalty=penalty), few))
        return torch.tensor([trace.advantage for trace in traces])[:, None].expand(x.mask.shape)

    yield name, "prime-rl/grpo", {}, {}, lambda x: scored(x, None)
    for weight in (0.25, 2.0):
        penalty = SimpleNamespace(
            num_output_tokens_weight=weight, num_input_tokens_weight=0.0, num_turns_weight=0.0
        )
        stages = {"advantage": "prime-rl/length-penalty"}
        values = {"num_output_tokens_weight": weight}
        yield name, "prime-rl/grpo", stages, values, lambda x, p=penalty: scored(x, p)


def prime_rl(clones: Clones) -> Iterator[Case]:
    """default_loss_fn, ipo_loss_fn and ref_kl_loss_fn, summed and scaled by compute_loss."""
    name = "PrimeIntellect-ai/prime-rl"
    own = clones.load(
        name,
        "src/prime_rl/trainer/rl/loss.py",
        [
            "LossInputs",
            "LossOutputs",
            "_safe_mean",
            "compute_importance_ratio_and_mismatch_kl",
            "compute_loss",
            "default_loss_fn",
            "ipo_loss_fn",
            "ref_kl_loss_fn",
        ],
        field=field,
    )
    default = {"dppo_mask_low": 0.2, "dppo_mask_high": 0.2, "adv_tau": 1.0, "kl_tau": 1e-3}

    def run(function: Any, *, distil: bool = False, **config: Any) -> Loss:
        def value(x: Inputs) -> torch.Tensor:
            columns = [
                x.packed(table) for table in (x.new, x.gen, x.ref, x.advantages, x.mask.bool())
            ]
            ones = [mask.double() for mask in columns[-1]]
            weights = ([torch.zeros_like(one) for one in ones], None, ones)
            tokens = int(x.mask.sum())
            return own.compute_loss(
                *columns,
                *(weights if distil else (None, None, None)),
                rl_loss_fn=lambda inputs: function(inputs, SimpleNamespace(**config)),
                rl_scale=tokens,
                ce_scale=1,
                ref_kl_scale=tokens,
            )[0]

        return value

    yield name, "prime-rl/grpo", {}, {}, run(own.default_loss_fn, **default)
    yield (
        name,
        "prime-rl/grpo",
        {},
        {
            "divergence_low": 0.02,
            "divergence_high": 0.05,
            "beta": 0.1,
        },
        run(own.default_loss_fn, dppo_mask_low=0.02, dppo_mask_high=0.05, adv_tau=1.0, kl_tau=0.1),
    )
    yield (
        name,
        "prime-rl/ipo",
        {},
        {},
        run(own.ipo_loss_fn, ipo_threshold=0.1, adv_tau=1.0, kl_tau=1e-3),
    )
    yield name, "prime-rl/ref_kl", {}, {}, run(own.default_loss_fn, distil=True, **default)
