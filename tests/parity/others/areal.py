"""AReaL: ppo_actor_loss_fn, sapo_loss_fn, cispo_loss_fn, its rejection and its M2PO mask."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from ..framework_sources import Clones
from .inputs import Case, Inputs, Loss


def areal(clones: Clones) -> Iterator[Case]:
    """ppo_actor_loss_fn with its rejection sampling, sapo_loss_fn, the M2PO mask."""
    name = "areal-project/AReaL"
    own = clones.load(
        name,
        "areal/utils/functional/functional.py",
        [
            "RejectionSamplingResult",
            "_check_bounds",
            "_compute_sequence_level_ratio_and_advantages",
            "apply_rejection_sampling",
            "ppo_actor_loss_fn",
            "sapo_loss_fn",
        ],
    )
    actor = clones.load(
        name, "areal/trainer/ppo/actor.py", ["_apply_m2po_masking", "_get_m2po_loss_mask"]
    )

    def rejection(level: str = "token", action: str = "mask", **bounds: Any) -> SimpleNamespace:
        return SimpleNamespace(
            level=level, action=action, metric="ratio", agg="mean", **{"lower": None, **bounds}
        )

    def run(m2: float | None = None, clip: float = 0.4, **settings: Any) -> Loss:
        def value(x: Inputs) -> torch.Tensor:
            mask = x.mask.bool()
            if m2 is not None:
                mask = actor._apply_m2po_masking(x.gen, x.old, mask, m2)
            tables = (x.new, x.old, x.gen, x.advantages)
            return own.ppo_actor_loss_fn(*tables, eps_clip=clip, loss_mask=mask, **settings)[0]

        return value

    def sapo(x: Inputs) -> torch.Tensor:
        return own.sapo_loss_fn(x.new, x.old, x.advantages, 1.0, 1.05, x.mask.bool())[0]

    example = {"rejection_sampling": rejection(upper=5.0)}
    yield name, "areal/grpo", {}, {}, run(**example)
    yield name, "areal/grpo", {"correction": "none"}, {}, run()
    yield (
        name,
        "areal/grpo",
        {},
        {"is_low": 0.9, "is_high": 1.1},
        run(rejection_sampling=rejection(lower=0.9, upper=1.1)),
    )
    yield (
        name,
        "areal/grpo",
        {"correction": "token-truncate"},
        {"is_high": 1.1},
        run(rejection_sampling=rejection(action="clamp", upper=1.1)),
    )
    yield (
        name,
        "areal/grpo",
        {"correction": "areal/sequence-mask"},
        {
            "is_low": 0.9,
            "is_high": 1.1,
        },
        run(rejection_sampling=rejection("sequence", lower=0.9, upper=1.1)),
    )
    yield (
        name,
        "areal/dapo",
        {},
        {"dual_clip": 3.0},
        run(clip=0.2, eps_clip_higher=0.28, c_clip=3.0, **example),
    )
    yield name, "areal/gspo", {}, {}, run(importance_sampling_level="sequence", **example)
    yield (
        name,
        "areal/gspo",
        {},
        {"is_low": 0.9, "is_high": 1.1, "epsilon": 0.02},
        run(
            clip=0.02,
            importance_sampling_level="sequence",
            rejection_sampling=rejection(lower=0.9, upper=1.1),
        ),
    )
    yield name, "areal/sapo", {}, {}, sapo
    yield name, "areal/m2po", {}, {}, run(0.04, 0.0, **example)
    yield (
        name,
        "areal/m2po",
        {},
        {"m2_threshold": 0.001, "epsilon": 0.2, "is_high": 1.1},
        run(0.001, 0.2, rejection_sampling=rejection(upper=1.1)),
    )
    yield name, "areal/m2po", {"correction": "areal/m2po"}, {}, run(0.04, 0.0)


def areal_project(clones: Clones) -> Iterator[Case]:
    """cispo_loss_fn, and apply_rejection_sampling with every metric, level, agg and action."""
    name = "areal-project/AReaL"
    estimate = clones.load(name, "areal/utils/data.py", ["_compute_approx_kl"])
    own = clones.load(
        name,
        "areal/utils/functional/functional.py",
        [
            "RejectionSamplingResult",
            "_check_bounds",
            "_compute_sequence_level_ratio_and_advantages",
            "apply_rejection_sampling",
            "cispo_loss_fn",
            "compute_binary_kl_divergence",
            "ppo_actor_loss_fn",
        ],
        KLEstimator=estimate,
    )

    def run(function: Any, rejection: dict[str, Any], **settings: Any) -> Loss:
        chosen = {"level": "token", "action": "mask", "metric": "ratio", "agg": "mean"}
        config = SimpleNamespace(**{**chosen, "lower": None, **rejection})

        def value(x: Inputs) -> torch.Tensor:
            return function(
                logprobs=x.new,
                proximal_logprobs=x.old,
                old_logprobs=x.gen,
                advantages=x.advantages,
                loss_mask=x.mask.bool(),
                rejection_sampling=config,
                **settings,
            )[0]

        return value

    wide = {"eps_clip": 1.0, "eps_clip_higher": 4.0}
    yield name, "areal/cispo", {}, {}, run(own.cispo_loss_fn, {"upper": 5.0}, **wide)
    narrow = {"eps_clip": 0.1, "eps_clip_higher": 0.2}
    bounds = {"epsilon_low": 0.1, "epsilon_high": 0.2, "is_low": 0.9, "is_high": 1.1}
    limits = {"lower": 0.9, "upper": 1.1}
    yield name, "areal/cispo", {}, bounds, run(own.cispo_loss_fn, limits, **narrow)
    kpop = {"metric": "binary_kl", "upper": 0.05}
    bound = {"is_high": 0.05}
    yield name, "areal/kpop", {}, bound, run(own.ppo_actor_loss_fn, kpop, eps_clip=0.4)
    usual = {"metric": "binary_kl", "upper": 5.0}
    yield name, "areal/kpop", {}, {}, run(own.ppo_actor_loss_fn, usual, eps_clip=0.4)
    for metric in ("ratio", "kl_k1", "kl_k2", "kl_k3", "binary_kl"):
        low, high = (0.95, 1.1) if metric == "ratio" else (None, 0.01)
        for level, agg, action in (
            ("token", "mean", "mask"),
            ("token", "mean", "clamp"),
            ("sequence", "sum", "mask"),
            ("sequence", "mean", "mask"),
            ("sequence", "max", "mask"),
            ("sequence", "mean", "clamp"),
        ):
            ours = {"metric": metric, "level": level, "agg": agg, "action": action}
            theirs = run(own.ppo_actor_loss_fn, {**ours, "lower": low, "upper": high}, eps_clip=0.4)
            given = {f"rejection_{key}": value for key, value in ours.items()}
            given |= {"is_low": low, "is_high": high}
            yield name, "areal/grpo", {"correction": "areal/rejection"}, given, theirs
