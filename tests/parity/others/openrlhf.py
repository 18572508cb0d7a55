"""OpenRLHF: PolicyLoss, compute_approx_kl, compute_advantages_and_returns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from ..framework_sources import Clones
from .inputs import SIZE, Case, Inputs, Loss


def openrlhf(clones: Clones) -> Iterator[Case]:
    """PolicyLoss and compute_approx_kl."""
    name = "OpenRLHF/OpenRLHF"
    utils = clones.load(name, "openrlhf/models/utils.py", ["compute_approx_kl", "masked_mean"])
    loss = clones.load(
        name,
        "openrlhf/models/loss.py",
        ["PolicyLoss", "aggregate_loss"],
        masked_mean=utils.masked_mean,
    )

    def run(kl: str | None = None, beta: float = 0.0, **settings: Any) -> Loss:
        def value(x: Inputs) -> torch.Tensor:
            policy = loss.PolicyLoss(**settings)(x.new, x.old, x.advantages, x.mask, x.gen)[0]
            if kl is None:
                return policy
            return policy + beta * loss.aggregate_loss(
                utils.compute_approx_kl(x.new, x.ref, kl), x.mask
            )

        return value

    yield name, "openrlhf/ppo", {}, {}, run()
    yield (
        name,
        "openrlhf/ppo",
        {},
        {"epsilon_high": 0.28, "dual_clip": 3.0},
        run(clip_eps_high=0.28, dual_clip=3.0),
    )
    yield name, "openrlhf/gspo", {}, {}, run(policy_loss_type="gspo")
    for kl in ("k1", "k2", "k3"):
        stages, values = {"kl": kl}, {"beta": 0.1, "kl_output_clamp": 10.0}
        yield name, "openrlhf/ppo", stages, values, run(kl, 0.1)
        yield name, "openrlhf/gspo", stages, values, run(kl, 0.1, policy_loss_type="gspo")
    corrected = {"enable_vllm_is_correction": True, "vllm_is_truncated_threshold": [0.5, 5.0]}
    yield name, "openrlhf/gspo-is", {}, {}, run(policy_loss_type="gspo", **corrected)
    for kind in ("tis", "icepop", "seq-mask-tis"):
        yield name, f"openrlhf/{kind}", {}, {}, run(vllm_is_correction_type=kind, **corrected)
    tight = {**corrected, "vllm_is_truncated_threshold": [0.95, 1.05]}
    for kind in ("tis", "icepop", "seq-mask-tis"):
        yield (
            name,
            f"openrlhf/{kind}",
            {},
            {"is_low": 0.95, "is_high": 1.05},
            run(vllm_is_correction_type=kind, **tight),
        )


def openrlhf_advantages(clones: Clones) -> Iterator[Case]:
    """compute_advantages_and_returns, with the KL in the reward, of both releases."""
    yield from _advantages(
        clones,
        "OpenRLHF/OpenRLHF",
        {
            "openrlhf/ppo": "group_norm",
            "openrlhf/dr_grpo": "dr_grpo",
            "openrlhf/rloo": "rloo",
            "openrlhf/reinforce_baseline": "reinforce_baseline",
        },
    )
    yield from _advantages(clones, "openrlhf", {"openrlhf/flash_reinforce": "flash_reinforce"})


def _advantages(clones: Clones, name: str, estimators: dict[str, str]) -> Iterator[Case]:
    utils = clones.load(name, "openrlhf/models/utils.py", ["compute_approx_kl", "compute_reward"])
    own = clones.load(
        name,
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

    for variant, estimator in estimators.items():
        more = {"rejection_threshold": 1.0} if estimator == "flash_reinforce" else {}
        yield name, variant, {}, more, run(estimator, "k1", 0.01)
        yield (
            name,
            variant,
            {"kl": "k3-in-reward"},
            {"beta": 0.5, **more},
            run(estimator, "k3", 0.5),
        )


def openrlhf_wheel(clones: Clones) -> Iterator[Case]:
    """0.11.2: the gates of is_correction, loss_agg_mode, kl.unbiased_gradient, entropy_coef."""
    name = "openrlhf"
    utils = clones.load(
        name,
        "openrlhf/models/utils.py",
        ["compute_approx_kl", "masked_mean"],
        KL_IS_WEIGHT_CLIP=10.0,
    )
    loss = clones.load(
        name,
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

    mean = {"aggregate": "openrlhf/seq-mean-token-mean"}
    yield name, "openrlhf/ppo", mean, {}, run(token_level_loss=False)
    yield (
        name,
        "openrlhf/ppo",
        mean,
        {"entropy_coef": 0.3},
        run(token_level_loss=False, entropy=0.3),
    )
    yield name, "openrlhf/ppo", {}, {"entropy_coef": -0.2}, run(entropy=-0.2)
    for kl in ("k1", "k2", "k3"):
        beta = {"beta": 0.1}
        yield name, "openrlhf/ppo", {"kl": f"openrlhf/{kl}+"}, beta, run(kl, unbiased=True)
        yield (
            name,
            "openrlhf/gspo",
            {"kl": f"openrlhf/{kl}+"},
            beta,
            run(kl, unbiased=True, policy_loss_type="gspo"),
        )
        clamped = {"beta": 0.1, "kl_output_clamp": 10.0}
        yield name, "openrlhf/ppo", {**mean, "kl": kl}, clamped, run(kl, token_level_loss=False)
    for low, high in ((0.5, 5.0), (0.95, 1.05)):
        bounds = {"is_low": low, "is_high": high}
        clip = {"is_correction_mode": "clip"}
        yield name, "openrlhf/tis", {}, bounds, gated("token", "ratio", low, high, **clip)
        yield name, "openrlhf/icepop", {}, bounds, gated("token", "ratio", low, high)
        yield name, "openrlhf/seq-mask-tis", {}, bounds, gated("seq", "ratio", low, high)
    for gating in ("binary_kl", "tv"):
        for level in ("token", "seq"):
            choice = {"correction": f"openrlhf/{level}-{gating.replace('_', '-')}-mask"}
            for most in (0.002, 0.02):
                bound = {"rejection_threshold": most}
                yield name, "openrlhf/ppo", choice, bound, gated(level, gating, 0.0, most)
    most = {"rejection_threshold": 0.01}
    yield name, "openrlhf/flash_reinforce", {}, most, gated("seq", "binary_kl", 0.0, 0.01)
