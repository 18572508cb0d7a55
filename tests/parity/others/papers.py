"""What goes with papers: losses and advantages that their authors or others released."""

from __future__ import annotations

import ast
import io
from collections import defaultdict
from collections.abc import Iterator
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ..framework_sources import Clones
from .inputs import SIZE, Case, Inputs, Loss

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


def _at_the_end(x: Inputs) -> torch.Tensor:
    """[R, T] each reward at its response's last token."""
    table = torch.zeros_like(x.mask)
    last = x.lengths.long() - 1
    table[torch.arange(len(last)), last] = x.rewards
    return table


def signed(clones: Clones) -> Iterator[Case]:
    """compute_psr_nsr_outcome_advantage, for scores of 1 and 0."""
    name = "TianHongZXY/RLVR-Decomposed"
    own = clones.load(name, CORE, ["compute_psr_nsr_outcome_advantage"])

    def run(kind: str, weight: float = 1.0) -> Loss:
        def value(x: Inputs) -> torch.Tensor:
            table = _at_the_end(x)
            return own.compute_psr_nsr_outcome_advantage(table, table, x.mask, 1.0, kind, weight)[0]

        return value

    yield name, "psr", {}, {}, run("positive")
    yield name, "nsr", {}, {}, run("negative")
    yield name, "w-reinforce", {}, {}, run("weighted", 0.1)
    yield name, "w-reinforce", {}, {"positive_weight": 0.3}, run("weighted", 0.3)


def first_step(clones: Clones) -> Iterator[Case]:
    """compute_dcpo_outcome_advantage for prompts that were never seen before."""
    name = "lime-RL/DCPO"
    from collections import defaultdict

    own = clones.load(
        name, CORE, ["compute_dcpo_outcome_advantage", "get_mean_std"], defaultdict=defaultdict
    )

    def value(x: Inputs) -> torch.Tensor:
        nothing = [0] * x.batch.count
        with redirect_stdout(io.StringIO()):  # it prints
            found = own.compute_dcpo_outcome_advantage(
                _at_the_end(x), x.mask, x.batch.groups, nothing, nothing, nothing
            )
        table: torch.Tensor = found["advantages"]
        return table

    yield name, "dcpo", {}, {}, value


def filtered(clones: Clones) -> Iterator[Case]:
    """The filter of TRL's GFPOTrainer, cut out of the method that it stands in."""
    name = "huggingface/trl"
    text = clones.text(name, "trl/experimental/gfpo/gfpo_trainer.py")
    code = compile(_between(text, "num_in_group =", "# Slice to keep"), name, "exec")
    given = {"std_ddof": 1, "std_eps": 1e-4}

    def run(keep: int, *, efficient: bool) -> Loss:
        def value(x: Inputs) -> torch.Tensor:
            scores = x.rewards / x.lengths if efficient else -x.lengths
            space: dict[str, Any] = {
                "self": SimpleNamespace(
                    num_generations=SIZE,
                    num_remains_in_group=keep,
                    scale_rewards="group",
                    group_filter_func=lambda **_: scores.reshape(-1, SIZE).tolist(),
                ),
                "torch": torch,
                "gather_object": list,
                "mode": "train",
                "device": "cpu",
                "prompts": [""] * x.batch.count,
                "completions": [""] * x.batch.count,
                "rewards": x.rewards,
                "rewards_per_func": x.rewards[:, None],
            }
            exec(code, space)
            found = torch.zeros(x.batch.count)
            found[space["group_global_indices"]] = space["advantages"]
            return found[:, None] * x.mask

        return value

    for keep in (2, 3):
        kept = given | {"gfpo_keep": keep}
        yield name, "gfpo", {}, kept, run(keep, efficient=False)
        yield name, "gfpo-efficiency", {}, kept, run(keep, efficient=True)


def _between(text: str, first: str, last: str) -> str:
    """The lines of a method from one on, before another one."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip().startswith(first))
    end = next(i for i, line in enumerate(lines) if i > start and line.strip().startswith(last))
    indent = len(lines[start]) - len(lines[start].lstrip())
    return ast.unparse(ast.parse("\n".join(line[indent:] for line in lines[start:end])))


FIPO, DPPO, MAXRL = "qwenpilot/FIPO", "sail-sg/Stable-RL", "tajwarfahim/maxrl"


def fipo(clones: Clones) -> Iterator[Case]:
    """compute_policy_loss_future_kl with the script's settings, and with a bound that binds."""
    functional = clones.load(FIPO, "verl/utils/torch_functional.py", ["masked_mean", "masked_sum"])
    own = clones.load(
        FIPO,
        CORE,
        ["agg_loss", "compute_policy_loss_future_kl"],
        verl_F=functional,
        AlgoConfig=type("AlgoConfig", (), {}),
    )

    def run(bound: float, safe: float) -> Loss:
        policy = Config(
            decay_rate=32.0,
            future_kl_clip_ratio=0.2,
            future_kl_clip_high_only=True,
            safety_thresh=safe,
        )
        config = Config(
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
    own = clones.load(DPPO, CORE, ["_compute_token_mask_for_policy_loss"])

    def run(mode: str, bound: float) -> Loss:
        config = Config(clip_ratio=0.2, clip_ratio_low=bound, clip_ratio_high=bound)
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
    own = clones.load(MAXRL, CORE, ["compute_maxrl_outcome_advantage"], defaultdict=defaultdict)

    def value(x: Inputs) -> torch.Tensor:
        rewards = torch.zeros(x.mask.shape)
        rewards[:, 0] = x.rewards
        groups = np.array(x.batch.groups)
        ones = torch.ones(x.mask.shape)
        return own.compute_maxrl_outcome_advantage(rewards, ones, groups)[0]

    yield MAXRL, "max-rl", {"advantage": "skyrl/maxrl"}, {}, value
