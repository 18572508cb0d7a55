"""ms-swift's advantages: compute_advantages, and what a teacher adds to them or weighs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..framework_sources import Clones
from .inputs import SIZE, Case, Inputs, Loss

_ESTIMATED = {
    ("grpo", "group"): None,
    ("grpo", "none"): "group-mean",
    ("grpo", "batch"): "batch-std",
    ("rloo", "none"): "leave-one-out",
    ("rloo", "group"): "ms-swift/rloo-group",
    ("rloo", "batch"): "ms-swift/rloo-batch",
    ("reinforce_plus_plus", "none"): "group-mean",
    ("reinforce_plus_plus", "group"): None,
    ("reinforce_plus_plus", "batch"): "batch-whiten",
}
"""advantage_estimator and scale_rewards → our advantage; None: the row's."""


def _advantages(clones: Clones) -> Any:
    utils = clones.load("ms-swift", "swift/utils/torch_utils.py", ["nanstd"], **_TYPES)
    names = ["apply_rlsd_reweight", "compute_advantages", "compute_teacher_logratio"]
    return clones.load(
        "ms-swift",
        "swift/rl_core/advantage.py",
        [*names, "expand_advantage_to_per_token"],
        nanstd=utils.nanstd,
    )


_TYPES = {"Optional": None, "Union": None}


def ms_swift_advantages(clones: Clones) -> Iterator[Case]:
    """compute_advantages, with a KL in the reward and without; what a teacher adds or weighs."""
    own = _advantages(clones)

    def base(x: Inputs, estimator: str = "grpo", scale: str = "group", beta: float = 0.0) -> Any:
        kl = ((x.old - x.ref) * x.mask).sum(-1)
        given = (x.rewards[:, None], torch.ones(1), SIZE, estimator, scale, beta > 0, beta, kl)
        return own.compute_advantages(*given)[0]

    def run(estimator: str, scale: str, beta: float) -> Loss:
        return lambda x: base(x, estimator, scale, beta)[:, None] * x.mask

    for (estimator, scale), choice in _ESTIMATED.items():
        stages = {} if choice is None else {"advantage": choice}
        eps = {"std_eps": 1e-4} if choice in ("batch-std", "batch-whiten") else {}
        yield "ms-swift", "ms-swift/grpo", stages, {"beta": 0.0, **eps}, run(estimator, scale, 0.0)
        inside = {**stages, "kl": "ms-swift/k1-in-reward"}
        yield "ms-swift", "ms-swift/grpo", inside, {"beta": 0.1, **eps}, run(estimator, scale, 0.1)

    def distilled(x: Inputs) -> torch.Tensor:
        return own.expand_advantage_to_per_token(base(x), x.mask, x.ref, x.old, 0.3)

    opd = {"std_eps": 1e-4, "opd_kl_coef": 0.3, "beta": 0.0}
    yield "ms-swift", "ms-swift/grpo", {"advantage": "slime/opd"}, opd, distilled

    def weighed(share: float, wide: float, *, negative: bool) -> Loss:
        return lambda x: own.apply_rlsd_reweight(
            base(x), x.mask, x.ref, x.old, share, wide, negative
        )

    for share, wide, negative in ((0.5, 0.2, False), (1.0, 0.05, True), (0.3, 0.5, True)):
        values = {
            "rlsd_lambda": share,
            "rlsd_clip_range": wide,
            "rlsd_negative_only": int(negative),
        }
        stages = {"advantage": "ms-swift/rlsd"}
        theirs = weighed(share, wide, negative=negative)
        yield "ms-swift", "ms-swift/grpo", stages, {**values, "beta": 0.0}, theirs


def ms_swift_gdpo(clones: Clones) -> Iterator[Case]:
    """compute_advantages of several reward functions, which count alike or not."""
    own = _advantages(clones)

    def run(weights: list[float], scale: str) -> Loss:
        def value(x: Inputs) -> torch.Tensor:
            found = own.compute_advantages(x.rewards, torch.tensor(weights), SIZE, "grpo", scale)
            return found[0][:, None] * x.mask

        return value

    for weights in ([1.0, 1.0], [1.0, -0.25]):
        how = {"reward_weights": weights, "beta": 0.0}
        yield "ms-swift", "ms-swift/grpo", {}, how, run(weights, "group")
        gdpo = {"advantage": "decoupled"}
        yield "ms-swift", "ms-swift/grpo", gdpo, {**how, "std_eps": 1e-8}, run(weights, "gdpo")
