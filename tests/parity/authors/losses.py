"""The policy losses of CE-GPPO, DCPO, BAPO and MiniRL."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from ..framework_sources import Clones
from ..others.inputs import Case, Inputs, Loss

CORE = "verl/trainer/ppo/core_algos.py"


class Config(SimpleNamespace):
    """A configuration that is read by attribute and with ``get``."""

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


def _masked(clones: Clones, repository: str) -> SimpleNamespace:
    path = "verl/utils/torch_functional.py"
    names = ["masked_sum", "masked_mean"]
    text = clones.text(repository, path)
    found = [name for name in names if f"def {name}(" in text]
    space: dict[str, Any] = {}
    for name in found:  # one calls the other
        space |= vars(clones.load(repository, path, [name], **space))
    return SimpleNamespace(**space)


def ce_gppo(clones: Clones) -> Iterator[Case]:
    """compute_gppo_loss_general_beta, at the scripts' settings and others."""
    name = "Kwai-Klear/CE-GPPO"
    helpers = _masked(clones, name)
    agg = clones.load(name, CORE, ["agg_loss"], verl_F=helpers).agg_loss
    own = clones.load(
        name, CORE, ["compute_gppo_loss_general_beta"], verl_F=helpers, agg_loss=agg
    ).compute_gppo_loss_general_beta

    def run(low: float, high: float, beta1: float, beta2: float, c: float) -> Loss:
        def value(x: Inputs) -> torch.Tensor:
            tables = (x.old, x.new, x.advantages, x.mask)
            return own(
                *tables,
                cliprange_low=low,
                cliprange_high=high,
                clip_ratio_c=c,
                gppo_loss_beta1=beta1,
                gppo_loss_beta2=beta2,
            )[0]

        return value

    yield name, "ce-gppo", {}, {"dual_clip": 10.0}, run(0.2, 0.2, 0.5, 1.0, 10.0)
    seven = {"gppo_beta1": 0.75, "dual_clip": 10.0}
    yield name, "ce-gppo", {}, seven, run(0.2, 0.2, 0.75, 1.0, 10.0)
    other = {"gppo_beta2": 0.3, "epsilon_low": 0.1, "epsilon_high": 0.3, "dual_clip": 1.4}
    yield name, "ce-gppo", {}, other, run(0.1, 0.3, 0.5, 0.3, 1.4)


def dcpo(clones: Clones) -> Iterator[Case]:
    """compute_policy_loss_dcpo with its dynamic clip; only-token-mean is token-mean there."""
    name = "lime-RL/DCPO"
    helpers = _masked(clones, name)
    modes = SimpleNamespace(TM="token-mean", OTM="only-token-mean")
    agg = clones.load(name, CORE, ["agg_loss"], verl_F=helpers, LossCalculator=modes).agg_loss
    own = clones.load(
        name,
        CORE,
        ["compute_policy_loss_dcpo", "get_clip_low_high"],
        verl_F=helpers,
        agg_loss=agg,
        AlgoConfig=type("AlgoConfig", (), {}),
    ).compute_policy_loss_dcpo

    def run(low: float, high: float) -> Loss:
        config = Config(clip_type="dynamic", clip_ratio=0.2, clip_ratio_c=10.0)
        config.clip_ratio_low, config.clip_ratio_high = low, high

        def value(x: Inputs) -> torch.Tensor:
            tables = (x.old, x.new, x.advantages, x.mask)
            return own(*tables, loss_agg_mode="only-token-mean", config=config)[0]

        return value

    stages = {"aggregate": "token-mean"}
    yield name, "dcpo", stages, {"dual_clip": 10.0}, run(0.2, 0.28)
    narrow = {"epsilon_low": 0.01, "epsilon_high": 0.02, "dual_clip": 10.0}
    yield name, "dcpo", stages, narrow, run(0.01, 0.02)


def bapo(clones: Clones) -> Iterator[Case]:
    """compute_policy_loss_bapo, where it balances at once, half way, and not at all."""
    name, path = "WooooDyy/BAPO", "recipe/bapo/policy_loss.py"
    helpers = _masked(clones, name)
    agg = clones.load(name, CORE, ["agg_loss"], verl_F=helpers).agg_loss
    own = clones.load(
        name,
        path,
        ["compute_policy_loss_bapo", "_compute_effective_advantage", "_append_metric"],
        verl_F=helpers,
        agg_loss=agg,
    ).compute_policy_loss_bapo

    def run(**settings: float) -> Loss:
        given = {"ratio_lower_step": 0.05, "ratio_upper_step": 0.05, "eps": 1e-8} | settings
        config = Config(clip_ratio=0.2, clip_ratio_c=3.0, policy_loss=Config(**given))

        def value(x: Inputs) -> torch.Tensor:
            tables = (x.old, x.new, x.advantages, x.mask)
            return own(*tables, config=config)[0]

        return value

    for target in (0.5, 1.0, 1.6, 1.65, 1.7, 1.75, 1.8, 50.0):
        for low, high in ((0.9, 3.0), (0.8, 2.0)):
            ours = {"bapo_target": target, "bapo_low_max": low, "bapo_high_max": high}
            theirs = {"adv_ratio_target": target, "ratio_lower_max": low, "ratio_upper_max": high}
            starts = {"ratio_lower_start": 0.6, "ratio_upper_start": 1.2}
            more = {"dual_clip": 3.0, "log_ratio_clamp": 20.0}
            yield name, "bapo", {}, {**ours, **more}, run(**theirs, **starts)


def minirl(clones: Clones) -> Iterator[Case]:
    """Stable-RL's loss ppo_recompute, "MiniRL", without its cap on the weight."""
    name = "sail-sg/Stable-RL"
    mask = clones.load(name, CORE, ["_compute_token_mask_for_policy_loss"])
    mask_of = mask._compute_token_mask_for_policy_loss

    def run(low: float, high: float) -> Loss:
        config = Config(clip_ratio=0.2, clip_ratio_low=low, clip_ratio_high=high)

        def value(x: Inputs) -> torch.Tensor:
            tables = (x.gen, x.old, x.new, x.advantages, x.mask)
            kept = mask_of(*tables, config=config, loss_mode="ppo_recompute").detach()
            weight = torch.exp(x.new - x.gen).detach()
            return (-x.advantages * weight * kept * x.new * x.mask).sum() / x.batch.count

        return value

    yield name, "minirl", {}, {}, run(0.2, 0.27)
    yield name, "minirl", {}, {"epsilon_low": 0.05, "epsilon_high": 0.1}, run(0.05, 0.1)
