"""AReaL: losses, rejection and M2PO mask; Normalization and PPOActor._compute_advantages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from ..framework_sources import Clones
from .inputs import SIZE, Case, Inputs, Loss


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
    values = {"is_low": 0.9, "is_high": 1.1}
    yield name, "areal/grpo", {}, values, run(rejection_sampling=rejection(lower=0.9, upper=1.1))
    theirs = run(rejection_sampling=rejection(action="clamp", upper=1.1))
    yield name, "areal/grpo", {"correction": "token-truncate"}, {"is_high": 1.1}, theirs
    values = {"is_low": 0.9, "is_high": 1.1}
    theirs = run(rejection_sampling=rejection("sequence", lower=0.9, upper=1.1))
    yield name, "areal/grpo", {"correction": "areal/sequence-mask"}, values, theirs
    values = {"dual_clip": 3.0}
    yield name, "areal/dapo", {}, values, run(clip=0.2, eps_clip_higher=0.28, c_clip=3.0, **example)
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
    values = {"m2_threshold": 0.001, "epsilon": 0.2, "is_high": 1.1}
    yield name, "areal/m2po", {}, values, run(0.001, 0.2, rejection_sampling=rejection(upper=1.1))
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
