"""open-instruct: compute_grpo_loss with compute_rho_correction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from types import SimpleNamespace
from typing import Any

import torch

from ..framework_sources import Clones
from .inputs import Case, Inputs, Loss


def open_instruct(clones: Clones) -> Iterator[Case]:
    """compute_grpo_loss with compute_rho_correction; the token mean is ours."""
    name = "allenai/open-instruct"
    utils = clones.load(name, "open_instruct/model_utils.py", ["estimate_kl"])
    own = clones.load(
        name,
        "open_instruct/grpo_utils.py",
        [
            "RhoCorrection",
            "_rho_drop_masks",
            "_sequence_level_mean",
            "compute_grpo_loss",
            "compute_rho_correction",
        ],
        model_utils=utils,
        GRPOLossType=SimpleNamespace(dapo="dapo", cispo="cispo"),
        field=field,
    )
    defaults = {
        "loss_fn": "dapo",
        "clip_lower": 0.2,
        "clip_higher": 0.272,
        "kl_estimator": 2,
        "use_rho_correction": True,
        "rho_clamp_lower_bound": 0.0,
        "rho_clamp_upper_bound": 2.0,
        "rho_mask_lower_bound": 0.0,
        "rho_mask_upper_bound": 0.0,
        "rho_mask_sequence_level": False,
        "rho_mask_tv_divergence": False,
    }

    def run(**changed: Any) -> Loss:
        config = SimpleNamespace(**{**defaults, **changed})

        def value(x: Inputs) -> torch.Tensor:
            mask = x.mask.bool()
            rho = own.compute_rho_correction(x.old, x.gen, mask, x.advantages, config)
            tables = (
                x.new,
                (x.new - x.old).exp(),
                x.advantages.clone(),
                x.ref,
                config,
                rho.weights,
            )
            policy, _, kl = own.compute_grpo_loss(*tables)
            return x.token_mean(policy + 0.05 * kl)

        return value

    yield name, "open-instruct/grpo", {}, {}, run()
    yield name, "open-instruct/grpo", {"correction": "none"}, {}, run(use_rho_correction=False)
    for index, kl in enumerate(("k1", "k2", "k3", "k1")):
        weight = {"kl_weight": "ratio" if index == 3 else "none"}
        yield name, "open-instruct/grpo", {"kl": kl}, weight, run(kl_estimator=index)
    yield name, "open-instruct/cispo", {}, {}, run(loss_fn="cispo")
    mask = {"rho_mask_lower_bound": 0.9, "rho_mask_upper_bound": 1.1}
    ours = {"rho_mask_low": 0.9, "rho_mask_high": 1.1}
    yield name, "open-instruct/grpo", {}, ours, run(**mask)
    theirs = run(**mask, rho_clamp_lower_bound=0.95, rho_clamp_upper_bound=1.05)
    yield name, "open-instruct/grpo", {}, {**ours, "is_low": 0.95, "is_high": 1.05}, theirs
    sequence = {"correction": "open-instruct/rho-sequence"}
    yield name, "open-instruct/grpo", sequence, ours, run(**mask, rho_mask_sequence_level=True)
    variation = {"correction": "open-instruct/rho-divergence"}
    theirs = run(rho_mask_upper_bound=0.05, rho_mask_tv_divergence=True)
    yield name, "open-instruct/grpo", variation, {"rho_mask_high": 0.05}, theirs
