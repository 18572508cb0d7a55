"""verl 0.9.1's own functions on a ragged batch, in float64.

verl's trainer adds the KL and the entropy to the policy loss as ``compute`` does: each is
aggregated with ``loss_agg_mode`` and multiplied by its coefficient.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.workers.config.actor import ActorConfig, PolicyLossConfig

from .batches import F64, Ragged

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
    estimator: str,
    *,
    penalty: torch.Tensor | None = None,
    gamma: float = 1.0,
    norm: bool = True,
) -> torch.Tensor:
    """[R, W] the advantages by one of verl's estimators."""
    function: Callable[..., Any] = core_algos.get_adv_estimator_fn(estimator)
    own = {"norm_adv_by_std_in_grpo": norm} if estimator.startswith("grpo") else {}
    found, _ = function(
        token_level_rewards=token_rewards(batch, penalty),
        response_mask=tensor(batch, "mask"),
        index=np.array([f"prompt-{group}" for group in batch.groups], dtype=object),
        config=AlgoConfig(gamma=gamma, norm_adv_by_std_in_grpo=norm),
        **own,
    )
    return found


def gdpo(batch: Ragged, columns: F64, weights: list[float] | None = None) -> torch.Tensor:
    """[R, W] GDPO of several reward functions [R, K], which verl takes in float32."""
    names = [f"reward_{k}" for k in range(columns.shape[1])]
    mask = tensor(batch, "mask")
    attended = torch.tensor(batch.padded("mask") * 0.0)
    for row, own in enumerate(batch.mask):
        attended[row, : len(own)] = 1.0
    found, _ = core_algos.get_adv_estimator_fn("gdpo")(
        token_level_rewards=token_rewards(batch),
        response_mask=mask,
        index=batch.groups,
        config=AlgoConfig(gdpo_reward_keys=names, gdpo_reward_weights=weights),
        non_tensor_batch={name: columns[:, k] for k, name in enumerate(names)},
        batch={
            "prompts": torch.zeros(batch.count, 1),
            "attention_mask": torch.cat([torch.ones(batch.count, 1), attended], dim=1).long(),
        },
    )
    return found


def chosen(places: list[int]) -> Callable[[int], torch.Tensor]:
    """A stand-in for torch.randperm that puts ``places`` first."""
    return lambda count: torch.tensor(
        places + [place for place in range(count) if place not in places], dtype=torch.long
    )


core = SimpleNamespace(kl_penalty=core_algos.kl_penalty, agg_loss=core_algos.agg_loss)


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
