"""What the authors of papers run: FIPO's loss, DPPO's masks, MaxRL's advantage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ..framework_sources import Clones
from .inputs import Case, Inputs, Loss

ALGORITHMS = "verl/trainer/ppo/core_algos.py"
FIPO, DPPO, MAXRL = "qwenpilot/FIPO", "sail-sg/Stable-RL", "tajwarfahim/maxrl"


class _Config(SimpleNamespace):
    """A configuration that is also asked by name."""

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


def fipo(clones: Clones) -> Iterator[Case]:
    """compute_policy_loss_future_kl with the script's settings, and with a bound that binds."""
    functional = clones.load(FIPO, "verl/utils/torch_functional.py", ["masked_mean", "masked_sum"])
    own = clones.load(
        FIPO,
        ALGORITHMS,
        ["agg_loss", "compute_policy_loss_future_kl"],
        verl_F=functional,
        AlgoConfig=type("AlgoConfig", (), {}),
    )

    def run(bound: float, safe: float) -> Loss:
        policy = _Config(
            decay_rate=32.0,
            future_kl_clip_ratio=0.2,
            future_kl_clip_high_only=True,
            safety_thresh=safe,
        )
        config = _Config(
            clip_ratio=0.2,
            clip_ratio_low=0.2,
            clip_ratio_high=0.28,
            clip_ratio_c=bound,
            policy_loss=policy,
        )

        def value(x: Inputs) -> torch.Tensor:
            tables = (x.old, x.new, x.advantages, x.mask)
            return own.compute_policy_loss_future_kl(*tables, config=config)[0]

        return value

    yield FIPO, "fipo", {}, {}, run(10.0, 10.0)
    yield FIPO, "fipo", {}, {"delta": 1.3, "fipo_safety_threshold": 1.1}, run(1.3, 1.1)


def dppo(clones: Clones) -> Iterator[Case]:
    """_compute_token_mask_for_policy_loss; ρ·A of what it keeps, whose gradient is theirs.

    Their loss has sg[min(ρ, c)]·A·log π_θ in its place, the ratio always against the engine.
    """
    own = clones.load(DPPO, ALGORITHMS, ["_compute_token_mask_for_policy_loss"])

    def run(mode: str, bound: float) -> Loss:
        config = _Config(clip_ratio=0.2, clip_ratio_low=bound, clip_ratio_high=bound)
        recomputed = mode.endswith("recompute")

        def value(x: Inputs) -> torch.Tensor:
            kept = own._compute_token_mask_for_policy_loss(
                x.gen, x.old, x.new.detach(), x.advantages, x.mask, config, mode
            )
            ratio = (x.new - (x.old if recomputed else x.gen)).exp()
            return x.token_mean(-kept * ratio * x.advantages)

        return value

    for kind, usual in (("tv", 0.15), ("kl", 0.05)):
        name = f"dppo-{kind}"
        for bound in (usual, 0.01):
            values = {"divergence_low": bound, "divergence_high": bound}
            yield DPPO, name, {}, values, run(f"dppo_binary_{kind}_recompute", bound)
            engine = {"ratio": "rollout", "surrogate": f"{name}-rollout"}
            yield DPPO, name, engine, values, run(f"dppo_binary_{kind}", bound)


def maxrl(clones: Clones) -> Iterator[Case]:
    """compute_maxrl_outcome_advantage."""
    own = clones.load(
        MAXRL, ALGORITHMS, ["compute_maxrl_outcome_advantage"], defaultdict=defaultdict
    )

    def value(x: Inputs) -> torch.Tensor:
        rewards = torch.zeros(x.mask.shape)
        rewards[:, 0] = x.rewards
        groups = np.array(x.batch.groups)
        ones = torch.ones(x.mask.shape)
        return own.compute_maxrl_outcome_advantage(rewards, ones, groups)[0]

    yield MAXRL, "max-rl", {"advantage": "skyrl/maxrl"}, {}, value
