"""AReaL's advantages: its Normalization and PPOActor._compute_advantages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from ..framework_sources import Clones
from .inputs import SIZE, Case, Inputs, Loss


def _normalization(clones: Clones) -> Any:
    """Normalization over a group or the batch, as the example configures it."""
    own = clones.load("areal-project/AReaL", "areal/utils/data.py", ["Normalization"])

    def norm(level: str) -> Any:
        return own.Normalization(
            SimpleNamespace(
                mean_level=level,
                std_level=level,
                mean_leave1out=False,
                std_unbiased=True,
                group_size=SIZE,
                eps=1e-5,
            )
        )

    return norm


def areal_advantages(clones: Clones) -> Iterator[Case]:
    """Normalization of the rewards in the group, then of the advantages over the batch's tokens."""
    name = "areal-project/AReaL"
    norm = _normalization(clones)

    def value(x: Inputs) -> torch.Tensor:
        scores = norm("group")(((x.rewards - 0.5) * 10.0).clip(-20.0, 20.0))
        return norm("batch")(scores[:, None] * x.mask, x.mask)

    yield name, "areal/grpo", {}, {}, value
    computed = _computed(clones)
    yield name, "areal/grpo", {}, {"beta": 0.1}, computed("k1", 0.1, decoupled=True)
    yield name, "areal/sapo", {}, {"beta": 0.1}, computed("k1", 0.1, decoupled=False)
    for estimator, kl, decoupled in _PENALTIES:
        how = {"beta": 0.1, "kl_output_clamp": 10.0}
        theirs = computed(estimator, 0.1, decoupled=decoupled)
        yield name, "areal/grpo", {"kl": kl}, how, theirs


def areal_ends(clones: Clones) -> Iterator[Case]:
    """The same where a response ends where it was written to end, be its last token masked."""
    name, computed = "areal-project/AReaL", _computed(clones)
    last = {"advantage": "areal/on-last-token"}
    yield name, "areal/grpo", last, {}, computed("k1", 0.0, decoupled=False, whole=True)
    for estimator, kl, decoupled in _PENALTIES:
        how = {"beta": 0.1, "kl_output_clamp": 10.0}
        theirs = computed(estimator, 0.1, decoupled=decoupled, whole=True)
        yield name, "areal/grpo", {**last, "kl": kl}, how, theirs


_PENALTIES = [
    (estimator, f"{'areal/' if decoupled else ''}{estimator}-in-reward", decoupled)
    for estimator in ("k1", "k2", "k3")
    for decoupled in (True, False)
]


def _computed(clones: Clones) -> Any:
    """PPOActor._compute_advantages on a prompt of one token.

    A response ends with the last token that counts; ``whole``: where it was written to end, so
    that a masked token at its end is the one that has the reward.
    """
    name = "areal-project/AReaL"
    norm = _normalization(clones)
    data = clones.load(name, "areal/utils/data.py", ["KLEstimator"])
    gae = clones.load(name, "areal/trainer/ppo/gae.py", ["_compute_token_level_gae"])
    actor = clones.load(
        name, "areal/trainer/ppo/actor.py", ["_compute_advantages"], math=math, **vars(gae)
    )

    def behind_prompt(table: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(table, (1, 0))

    def predicted(table: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(table.detach(), (0, 1))

    def trainer(estimator: str, beta: float, *, decoupled: bool) -> SimpleNamespace:
        return SimpleNamespace(
            config=SimpleNamespace(
                overlong_reward_penalty=False, use_decoupled_loss=decoupled, recompute_logprob=True
            ),
            reward_bias=-0.5,
            reward_scaling=10.0,
            reward_clip=20.0,
            reward_norm=norm("group"),
            adv_norm=norm("batch"),
            kl_ctl=beta,
            kl_estimator=data.KLEstimator(estimator),
            mask_no_eos_with_zero=False,
            discount=1.0,
            gae_lambda=1.0,
            _gae_lambda_is_custom=False,
            gae_timestep_unit="token",  # its default
        )

    def computed(estimator: str, beta: float, *, decoupled: bool, whole: bool = False) -> Loss:
        def value(x: Inputs) -> torch.Tensor:
            ends = (x.mask * torch.arange(1, x.mask.shape[1] + 1)).amax(-1, keepdim=True)
            if whole:
                ends = torch.tensor([[len(row)] for row in x.batch.mask])
            there = torch.arange(x.mask.shape[1] + 1) <= ends
            given = {
                "input_ids": behind_prompt(x.mask),
                "rewards": x.rewards,
                "loss_mask": behind_prompt(x.mask),
                "attention_mask": there.double(),
                "logprobs": behind_prompt(x.gen),
                "prox_logp": predicted(x.old),
                "ref_logp": predicted(x.ref),
            }
            made = trainer(estimator, beta, decoupled=decoupled)
            return actor._compute_advantages(made, given)["advantages"]

        return value

    return computed
