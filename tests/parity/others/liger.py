"""Liger-Kernel's chunked GRPO loss, on log-probs instead of a linear layer."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from ..framework_sources import Clones
from .inputs import Case, Inputs, Loss

NAME = "liger-kernel"


def liger(clones: Clones) -> Iterator[Case]:
    """LigerFusedLinearGRPOFunction.ppo_loss_fn, of one chunk that is the batch."""
    base = clones.load(
        NAME, "liger_kernel/chunked_loss/fused_linear_ppo.py", ["_compute_dapo_normalizer"]
    )
    own = clones.load(
        NAME,
        "liger_kernel/chunked_loss/grpo_loss.py",
        ["ppo_loss_fn", "clip_coef_fn", "k3_loss_fn", "sapo_loss_fn"],
        LigerFusedLinearPPOBase=base,
        math=SimpleNamespace(),
    )

    def run(loss_type: str, **settings: Any) -> Loss:
        def value(x: Inputs) -> torch.Tensor:
            found = own.ppo_loss_fn(
                x.new,
                x.mask,
                x.advantages[:, 0],
                x.mask,
                ref_per_token_logps=x.ref,
                old_per_token_logps=x.old,
                loss_type=loss_type,
                **settings,
            )
            return found[0]

        return value

    yield NAME, "liger/dapo", {}, {"beta": 0.04}, run("dapo", beta=0.04)
    wide = {"epsilon_low": 0.1, "epsilon_high": 0.3, "delta": 1.5, "beta": 0.0}
    yield NAME, "liger/dapo", {}, wide, run("dapo", **wide)
    sequence = run("luspo", beta=0.0, importance_sampling_level="sequence")
    yield NAME, "trl/luspo", {}, {"beta": 0.0}, sequence
