"""slime: its policy losses and KLs, and the advantages of REINFORCE++ with baseline."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from ..framework_sources import Clones
from .inputs import SIZE, Case, Inputs, Loss


def slime(clones: Clones) -> Iterator[Case]:
    """compute_policy_loss, compute_cispo_loss, compute_gspo_kl, compute_approx_kl, OPSM."""
    name = "THUDM/slime"
    own = clones.load(
        name,
        "slime/utils/ppo_utils.py",
        [
            "compute_approx_kl",
            "compute_cispo_loss",
            "compute_gspo_kl",
            "compute_opsm_mask",
            "compute_policy_loss",
        ],
    )

    def ppo(x: Inputs, low: float, high: float, c: float | None = None) -> torch.Tensor:
        return own.compute_policy_loss(x.old - x.new, x.advantages, low, high, c)[0]

    def gspo(x: Inputs) -> torch.Tensor:
        rows = [list(table) for table in (x.new, x.old, x.new, x.mask)]
        kl = own.compute_gspo_kl(*rows).reshape(x.mask.shape)
        return own.compute_policy_loss(kl, x.advantages, 0.2, 0.2, None)[0]

    def cispo(x: Inputs, low: float, high: float) -> torch.Tensor:
        return own.compute_cispo_loss(x.old - x.new, x.new, x.advantages, low, high)[0]

    def opsm(x: Inputs) -> torch.Tensor:
        args = SimpleNamespace(opsm_delta=1e-4)
        rows = [list(table) for table in (x.new, x.old, x.advantages, x.mask)]
        return own.compute_opsm_mask(args, *rows)[0].reshape(x.mask.shape) * ppo(x, 0.2, 0.2)

    def kl(x: Inputs, kind: str, policy: Loss | None = None, *, unbiased: bool) -> torch.Tensor:
        ratio = (x.new - x.old).exp() if unbiased else None  # as policy_loss_function has it
        policy_loss = ppo(x, 0.2, 0.2) if policy is None else policy(x)
        return policy_loss + 0.1 * own.compute_approx_kl(x.new, x.ref, kind, ratio)

    engine = clones.load(
        name,
        "slime/backends/megatron_utils/loss.py",
        ["icepop_function", "vanilla_tis_function"],
        Any=Any,
    )

    def corrected(x: Inputs, function: Any, low: float, high: float) -> torch.Tensor:
        args = SimpleNamespace(tis_clip_low=low, tis_clip=high)
        logs = {"train_log_probs": list(x.old), "rollout_log_probs": list(x.gen)}
        flat = ppo(x, 0.2, 0.2).flatten()
        return function(args, pg_loss=flat, loss_masks=[], **logs)[0].reshape(x.mask.shape)

    tis, icepop = engine.vanilla_tis_function, engine.icepop_function
    tables: list[tuple[str, dict[str, str], dict[str, Any], Loss]] = [
        ("slime/grpo", {}, {}, lambda x: ppo(x, 0.2, 0.2)),
        (
            "slime/grpo",
            {},
            {"epsilon_high": 0.28, "dual_clip": 3.0},
            lambda x: ppo(x, 0.2, 0.28, 3.0),
        ),
        ("slime/gspo", {}, {}, gspo),
        ("slime/cispo", {}, {}, lambda x: cispo(x, 0.2, 0.2)),
        (
            "slime/cispo",
            {},
            {"epsilon_low": 1.0, "epsilon_high": 4.0},
            lambda x: cispo(x, 1.0, 4.0),
        ),
        ("slime/opsm", {}, {}, opsm),
        ("slime/tis", {}, {}, lambda x: corrected(x, tis, 0.0, 2.0)),
        ("slime/icepop", {}, {}, lambda x: corrected(x, icepop, 0.0, 2.0)),
        (
            "slime/icepop",
            {},
            {"is_low": 0.95, "is_high": 1.05},
            lambda x: corrected(x, icepop, 0.95, 1.05),
        ),
    ]
    for kind in ("k1", "k2", "k3", "low_var_kl"):
        ours = "slime/low_var_kl" if kind == "low_var_kl" else kind
        for unbiased in (False, True):
            weight = {"kl_weight": "ratio" if unbiased else "none"}
            tables.append(
                (
                    "slime/grpo",
                    {"kl": ours},
                    {"beta": 0.1, **weight},
                    lambda x, kind=kind, unbiased=unbiased: kl(x, kind, unbiased=unbiased),
                )
            )
            tables.append(
                (
                    "slime/gspo",
                    {"kl": ours},
                    {"beta": 0.1, "kl_weight": "token-ratio" if unbiased else "none"},
                    lambda x, kind=kind, unbiased=unbiased: kl(x, kind, gspo, unbiased=unbiased),
                )
            )
    for variant, stages, values, table in tables:
        yield name, variant, stages, values, lambda x, table=table: x.response_mean(table(x))
        by_token = {**stages, "aggregate": "slime/token-mean"}

        def per_token(x: Inputs, table: Loss = table) -> torch.Tensor:
            return (table(x) * x.mask).sum() / x.lengths.clamp(min=1).sum()

        yield name, variant, by_token, values, per_token


def slime_advantages(clones: Clones) -> Iterator[Case]:
    """get_reinforce_plus_plus_baseline_advantages, then distributed_masked_whiten."""
    name = "THUDM/slime"
    known = ["compute_approx_kl", "get_reinforce_plus_plus_baseline_advantages"]
    own = clones.load(name, "slime/utils/ppo_utils.py", known)
    whiten = clones.load(name, "slime/utils/distributed_utils.py", ["distributed_masked_whiten"])

    def value(x: Inputs) -> torch.Tensor:
        rewards = x.rewards.reshape(-1, SIZE)
        offsets = (rewards - rewards.mean(-1, keepdim=True)).flatten()
        kl = list(own.compute_approx_kl(x.old, x.ref, "k1"))
        known = own.get_reinforce_plus_plus_baseline_advantages(offsets, kl, list(x.mask), 0.1)
        return whiten.distributed_masked_whiten(torch.stack(known), x.mask)

    yield name, "slime/reinforce_plus_plus_baseline", {}, {"beta": 0.1}, value
    distil = clones.load(
        name, "slime/backends/megatron_utils/loss.py", ["apply_opd_kl_to_advantages"]
    )

    def estimated(x: Inputs, coef: float | None, *, whitened: bool) -> torch.Tensor:
        made = list(normalised(x, SIZE, len(x.rewards) // SIZE))
        if coef is not None:
            args = SimpleNamespace(opd_kl_coef=coef, opd_type="sglang")
            data = {"teacher_log_probs": list(x.ref)}
            distil.apply_opd_kl_to_advantages(args, data, made, list(x.old))
        table = torch.stack(made)
        return whiten.distributed_masked_whiten(table, x.mask) if whitened else table

    rewards = clones.load(name, "slime/ray/rollout.py", ["_post_process_rewards"])

    def normalised(x: Inputs, per_prompt: int, prompts: int) -> torch.Tensor:
        args = SimpleNamespace(
            advantage_estimator="grpo",
            rewards_normalization=True,
            grpo_std_normalization=True,
            n_samples_per_prompt=per_prompt,
            rollout_batch_size=prompts,
        )
        manager = SimpleNamespace(args=args, custom_reward_post_process_func=None)
        samples = [SimpleNamespace(get_reward_value=lambda _, r=r: r) for r in x.rewards.tolist()]
        _, scores = rewards._post_process_rewards(manager, samples)
        return torch.tensor(scores)[:, None].expand(x.mask.shape)

    yield name, "slime/grpo", {}, {}, lambda x: normalised(x, SIZE, len(x.rewards) // SIZE)
    for choice, values, coef, whitened in (
        ("slime/normalised", {}, None, True),
        ("slime/opd", {}, 1.0, False),
        ("slime/opd", {"opd_kl_coef": 0.3}, 0.3, False),
        ("slime/opd-normalised", {"opd_kl_coef": 0.3}, 0.3, True),
    ):

        def table(x: Inputs, coef: float | None = coef, whitened: bool = whitened) -> torch.Tensor:
            return estimated(x, coef, whitened=whitened)

        yield name, "slime/grpo", {"advantage": choice}, values, table
    one = {"advantage": "slime/one-group"}
    yield name, "slime/grpo", one, {}, lambda x: normalised(x, SIZE + 1, len(x.rewards) // SIZE)
