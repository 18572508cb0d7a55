"""OpenRLHF 0.11.2: PolicyLoss, compute_approx_kl, compute_advantages_and_returns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from ..framework_sources import Clones
from .inputs import SIZE, Case, Inputs, Loss

NAME = "openrlhf"
ESTIMATORS = {
    "openrlhf/ppo": "group_norm",
    "openrlhf/dr_grpo": "dr_grpo",
    "openrlhf/rloo": "rloo",
    "openrlhf/reinforce_baseline": "reinforce_baseline",
    "openrlhf/flash_reinforce": "flash_reinforce",
}
"""Row → advantage.estimator."""


def openrlhf(clones: Clones) -> Iterator[Case]:
    """PolicyLoss with the gates of is_correction, compute_approx_kl, aggregate_loss."""
    utils = clones.load(
        NAME,
        "openrlhf/models/utils.py",
        ["compute_approx_kl", "masked_mean"],
        KL_IS_WEIGHT_CLIP=10.0,
    )
    loss = clones.load(
        NAME,
        "openrlhf/models/loss.py",
        ["PolicyLoss", "aggregate_loss"],
        masked_mean=utils.masked_mean,
    )

    def run(
        kl: str | None = None, *, unbiased: bool = False, entropy: float = 0.0, **settings: Any
    ) -> Loss:
        def value(x: Inputs) -> torch.Tensor:
            total = loss.PolicyLoss(**settings)(x.new, x.old, x.advantages, x.mask, x.gen)[0]
            if kl is not None:
                estimate = utils.compute_approx_kl(x.new, x.ref, x.old, kl, unbiased)
                total = total + 0.1 * loss.aggregate_loss(estimate, x.mask)
            return total - entropy * loss.aggregate_loss(x.entropies, x.mask)

        return value

    def gated(level: str, gating: str, *bounds: float, **more: Any) -> Loss:
        settings = {"is_correction_level": level, "is_correction_gating": gating, **more}
        return run(is_correction_threshold=list(bounds), **settings)

    yield NAME, "openrlhf/ppo", {}, {}, run()
    wide = {"epsilon_high": 0.28, "dual_clip": 3.0}
    yield NAME, "openrlhf/ppo", {}, wide, run(clip_eps_high=0.28, dual_clip=3.0)
    yield NAME, "openrlhf/gspo", {}, {}, run(policy_loss_type="gspo")
    for kl in ("k1", "k2", "k3"):
        clamped = {"beta": 0.1, "kl_output_clamp": 10.0}
        yield NAME, "openrlhf/ppo", {"kl": kl}, clamped, run(kl)
        yield NAME, "openrlhf/gspo", {"kl": kl}, clamped, run(kl, policy_loss_type="gspo")
    switched = run(policy_loss_type="gspo", is_correction_level="token")
    yield NAME, "openrlhf/gspo-is", {}, {}, switched
    mean = {"aggregate": "openrlhf/seq-mean-token-mean"}
    yield NAME, "openrlhf/ppo", mean, {}, run(token_level_loss=False)
    values = {"entropy_coef": 0.3}
    yield NAME, "openrlhf/ppo", mean, values, run(token_level_loss=False, entropy=0.3)
    yield NAME, "openrlhf/ppo", {}, {"entropy_coef": -0.2}, run(entropy=-0.2)
    for kl in ("k1", "k2", "k3"):
        beta = {"beta": 0.1}
        yield NAME, "openrlhf/ppo", {"kl": f"openrlhf/{kl}+"}, beta, run(kl, unbiased=True)
        theirs = run(kl, unbiased=True, policy_loss_type="gspo")
        yield NAME, "openrlhf/gspo", {"kl": f"openrlhf/{kl}+"}, beta, theirs
        clamped = {"beta": 0.1, "kl_output_clamp": 10.0}
        yield NAME, "openrlhf/ppo", {**mean, "kl": kl}, clamped, run(kl, token_level_loss=False)
    for low, high in ((0.5, 5.0), (0.95, 1.05)):
        bounds = {"is_low": low, "is_high": high}
        clip = {"is_correction_mode": "clip"}
        yield NAME, "openrlhf/tis", {}, bounds, gated("token", "ratio", low, high, **clip)
        yield NAME, "openrlhf/icepop", {}, bounds, gated("token", "ratio", low, high)
        yield NAME, "openrlhf/seq-mask-tis", {}, bounds, gated("seq", "ratio", low, high)
    for gating in ("binary_kl", "tv"):
        for level in ("token", "seq"):
            choice = {"correction": f"openrlhf/{level}-{gating.replace('_', '-')}-mask"}
            for most in (0.002, 0.02):
                bound = {"rejection_threshold": most}
                yield NAME, "openrlhf/ppo", choice, bound, gated(level, gating, 0.0, most)
    most = {"rejection_threshold": 0.01}
    yield NAME, "openrlhf/flash_reinforce", {}, most, gated("seq", "binary_kl", 0.0, 0.01)


def openrlhf_advantages(clones: Clones) -> Iterator[Case]:
    """compute_advantages_and_returns, with the KL in the reward."""
    utils = clones.load(NAME, "openrlhf/models/utils.py", ["compute_approx_kl", "compute_reward"])
    own = clones.load(
        NAME,
        "openrlhf/trainer/ppo_utils/experience_maker.py",
        ["compute_advantages_and_returns", "get_cumulative_returns"],
        compute_reward=utils.compute_reward,
        apply_length_penalties=lambda *_: None,
        itertools=itertools,
    )

    def run(estimator: str, kind: str, beta: float) -> Loss:
        advantage = SimpleNamespace(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=False)
        args = SimpleNamespace(
            algo=SimpleNamespace(advantage=advantage),
            rollout=SimpleNamespace(n_samples_per_prompt=SIZE),
            reward=SimpleNamespace(clip_range=(-10.0, 10.0)),
        )
        maker = SimpleNamespace(
            strategy=SimpleNamespace(args=args),
            kl_ctl=SimpleNamespace(value=beta),
            advantage_estimator=estimator,
            get_cumulative_returns=lambda *x: own.get_cumulative_returns(None, *x),
        )

        def value(x: Inputs) -> torch.Tensor:
            made = SimpleNamespace(
                index=list(range(len(x.mask))),
                rewards=x.rewards,
                kl=utils.compute_approx_kl(x.old, x.ref, kl_estimator=kind),
                action_mask=x.mask,
                info={},
            )
            own.compute_advantages_and_returns(maker, [made])
            return made.advantages

        return value

    for variant, estimator in ESTIMATORS.items():
        more = {"rejection_threshold": 1.0} if estimator == "flash_reinforce" else {}
        yield NAME, variant, {}, more, run(estimator, "k1", 0.01)
        values = {"beta": 0.5, **more}
        yield NAME, variant, {"kl": "k3-in-reward"}, values, run(estimator, "k3", 0.5)
