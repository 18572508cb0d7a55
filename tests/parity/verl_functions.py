"""verl 0.9.1's own functions on a ragged batch, in float64.

verl's trainer adds the KL and the entropy to the policy loss as ``compute`` does: each is
aggregated with ``loss_agg_mode`` and multiplied by its coefficient.
"""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from verl.trainer.config import AlgoConfig
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.workers.config.actor import ActorConfig, PolicyLossConfig

from .batches import F64, Ragged

FRAMEWORK = "verl 0.9.1"
TABLE = json.loads(Path(__file__).with_name("verl.json").read_bytes())
"""What is asked of verl, by its names."""
POLICY = ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef", "dro_beta")
GLOBAL = ("dp_size", "batch_num_tokens", "global_batch_size", "loss_scale_factor")


@dataclass
class Computed:
    """What verl returned: loss with KL and entropy, policy loss without, and the rest."""

    loss: float
    policy: float
    kl: F64 | None
    gradient: F64
    metrics: dict[str, float]


def tensor(batch: Ragged, name: str) -> torch.Tensor:
    """[R, W] a column in float64, padded to the right."""
    return torch.tensor(batch.padded(name), dtype=torch.float64)


def compute(
    batch: Ragged,
    loss: str,
    *,
    mode: str = "token-mean",
    kl: str = "low_var_kl",
    beta: float = 0.0,
    entropy_coeff: float = 0.0,
    advantages: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    old: str = "log_probs_old",
    correction: dict[str, Any] | None = None,
    rollout_is_weights: torch.Tensor | None = None,
    **settings: Any,
) -> Computed:
    """Loss, gradient and metrics.

    Args:
        mask: of what a rejection left; None: the batch's.
        old: the column that is the old policy.
        correction: verl's ``rollout_correction``, for a loss that corrects by itself.
        settings: fields of ActorConfig by verl's names.
    """
    mask = tensor(batch, "mask") if mask is None else mask
    new = tensor(batch, "log_probs_new").requires_grad_()
    if advantages is None:
        advantages = torch.tensor(batch.advantages)[:, None] * mask
    config = actor_config(mode, settings)
    if correction is not None:
        object.__setattr__(config.policy_loss, "rollout_correction", correction)
    weights = {} if rollout_is_weights is None else {"rollout_is_weights": rollout_is_weights}
    policy, metrics = core_algos.get_policy_loss_fn(loss)(
        old_log_prob=tensor(batch, old),
        log_prob=new,
        advantages=advantages,
        response_mask=mask,
        loss_agg_mode=mode,
        config=config,
        **weights,
    )
    kld = core_algos.kl_penalty(new, tensor(batch, "log_probs_ref"), kl)
    total = policy + 0.0
    if beta:
        total = total + beta * core_algos.agg_loss(kld, mask, mode, **config.global_batch_info)
    if entropy_coeff:
        entropy = tensor(batch, "entropies")
        bonus = core_algos.agg_loss(entropy, mask, mode, **config.global_batch_info)
        total = total - entropy_coeff * bonus
    (gradient,) = torch.autograd.grad(total, new)
    return Computed(
        float(total.detach()),
        float(policy.detach()),
        kld.detach().numpy(),
        gradient.numpy(),
        dict(metrics),
    )


def actor_config(mode: str, settings: dict[str, Any]) -> ActorConfig:
    """verl's configuration object, with what the trainer puts into it."""
    own = {name: settings[name] for name in settings if name not in (*POLICY, *GLOBAL)}
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        loss_agg_mode=mode,
        policy_loss=PolicyLossConfig(
            **{name: settings[name] for name in settings if name in POLICY}
        ),
        **own,
    )
    info = {name: settings[name] for name in settings if name in GLOBAL}
    config.global_batch_info.update({"dp_size": 1} | info)
    return config


def token_rewards(batch: Ragged, penalty: torch.Tensor | None = None) -> torch.Tensor:
    """[R, W] the reward on the last token that counts (the first column where none does)."""
    mask = batch.padded("mask")
    table = np.zeros_like(mask)
    last = [int(np.flatnonzero(row)[-1]) if row.any() else 0 for row in mask]
    table[np.arange(batch.count), last] = batch.rewards
    rewards = torch.tensor(table)
    return rewards if penalty is None else rewards - penalty


def advantages(
    batch: Ragged,
    choice: str,
    /,
    *,
    penalty: torch.Tensor | None = None,
    gamma: float = 1.0,
    lam: float = 1.0,
    **more: Any,
) -> torch.Tensor:
    """[R, W] the advantages by one of verl's estimators; what else it reads is in ``more``.

    Args:
        choice: our name of it; ``_nostd`` is norm_adv_by_std_in_grpo False.
        penalty: [R, W] the KL in the reward.
    """
    norm, estimator = not choice.endswith("_nostd"), choice.removeprefix("verl/")
    function = core_algos.get_adv_estimator_fn(estimator.removesuffix("_nostd"))
    columns = ("old_log_probs", "log_probs_old"), ("values", "values")
    columns += (("sum_pi_squared", "sum_pi_squared"),)
    given = {theirs: tensor(batch, ours) for theirs, ours in columns if ours in batch.columns}
    given |= {
        "token_level_rewards": token_rewards(batch, penalty),
        "response_mask": tensor(batch, "mask"),
        "index": np.array([f"prompt-{group}" for group in batch.groups], dtype=object),
        "config": AlgoConfig(gamma=gamma, norm_adv_by_std_in_grpo=norm),
        "norm_adv_by_std_in_grpo": norm,
        "gamma": gamma,
        "lam": lam,
        **more,
    }
    takes = signature(function).parameters
    found, _ = function(**{name: value for name, value in given.items() if name in takes})
    return found


def kl_in_reward(batch: Ragged, beta: float, kl: str = "low_var_kl") -> torch.Tensor:
    """[R, W] the penalty that verl's trainer takes off the rewards of tokens."""
    old, ref, mask = (tensor(batch, name) for name in ("log_probs_old", "log_probs_ref", "mask"))
    return beta * core_algos.kl_penalty(old, ref, kl) * mask


def gdpo(batch: Ragged, columns: F64, weights: list[float] | None = None) -> torch.Tensor:
    """[R, W] GDPO of several reward functions [R, K], which verl takes in float32."""
    names = [f"reward_{k}" for k in range(columns.shape[1])]
    width = torch.arange(1 + batch.width)
    lengths = torch.tensor([len(row) for row in batch.mask])
    return advantages(
        batch,
        "gdpo",
        config=AlgoConfig(gdpo_reward_keys=names, gdpo_reward_weights=weights),
        non_tensor_batch={name: columns[:, k] for k, name in enumerate(names)},
        batch={
            "prompts": torch.zeros(batch.count, 1),
            "attention_mask": (width <= lengths[:, None]).long(),
        },
    )


def decoupled(
    batch: Ragged, mode: str, settings: dict[str, Any], loss: str = "vanilla", **more: Any
) -> Computed:
    """A corrected loss as verl's trainer makes it: the mask is the rejection's from there on."""
    names = ("log_probs_old", "log_probs_rollout", "mask")
    found, mask, _ = compute_rollout_correction_and_rejection_mask(
        *(tensor(batch, name) for name in names), **settings
    )
    weights = None if found is None else found.batch["rollout_is_weights"]
    return compute(batch, loss, mode=mode, mask=mask, rollout_is_weights=weights, **more)


def bypass(batch: Ragged, mode: str, settings: dict[str, Any], **more: Any) -> Computed:
    """The same where compute_policy_loss_bypass_mode masks for itself."""
    own = {"old": "log_probs_rollout", "correction": settings}
    return compute(batch, "bypass_mode", mode=mode, **own, **more)


def preset(name: str, batch: Ragged, mode: str, given: dict[str, Any], **more: Any) -> Computed:
    """What verl makes of a batch with one of its presets, of which ``given`` replaces some."""
    config = getattr(RolloutCorrectionConfig, name)()
    names = ("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize")
    names += ("rollout_rs", "rollout_rs_threshold")
    settings = {name: getattr(config, name) for name in names} | given
    if config.bypass_mode:
        return bypass(batch, mode, settings | {"loss_type": config.loss_type}, **more)
    return decoupled(batch, mode, settings, **more)


@contextmanager
def drawing(places: list[int]) -> Iterator[None]:
    """Lets verl draw ``places`` first, where it draws tokens at random."""

    def chosen(count: int) -> torch.Tensor:
        rest = [place for place in range(count) if place not in places]
        return torch.tensor(places + rest, dtype=torch.long)

    with patch.object(torch, "randperm", chosen):
        yield


_KINDS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def load(path: Path, names: Iterable[str], **known: Any) -> SimpleNamespace:
    """The named functions and classes of a file, executed without their decorators.

    Args:
        path: the file.
        names: what is taken of its top level.
        known: what these refer to; torch, numpy and defaultdict are there.
    """
    wanted = {*names}
    tree = ast.parse(path.read_text())
    found = [node for node in tree.body if isinstance(node, _KINDS) and node.name in wanted]
    assert {node.name for node in found} == wanted
    for node in found:
        node.decorator_list = []
    future = ast.parse("from __future__ import annotations").body
    module = ast.fix_missing_locations(ast.Module(body=[*future, *found], type_ignores=[]))
    space = {"__name__": __name__, "torch": torch, "np": np, "defaultdict": defaultdict, **known}
    exec(compile(module, str(path), "exec"), space)
    return SimpleNamespace(**{name: space[name] for name in wanted})
