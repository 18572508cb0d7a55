"""verl 0.9.1's own functions through the plugin: ``pytest verl_vectors.py --grpo-vectors``.

The policy losses, ``kl_penalty``, ``agg_loss``, the advantage estimators and the rollout correction
of ``verl.trainer.ppo``, put together as its actor does; here are only verl's names for what a case
says, and two of its settings: a dual clip that never binds, and the KL's aggregation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from verl.trainer.ppo import rollout_corr_helper

from grpo_cli.vectors import Case, Loss, NotClaimedError

from .. import verl_functions
from ..batches import Ragged, given
from . import claims

MODES = {
    "token-mean": "token-mean",
    "response-mean": "seq-mean-token-mean",
    "token-sum": "seq-mean-token-sum",
    "token-sum-norm": "seq-mean-token-sum-norm",
    "sum": "token-sum",
}
LOSSES: Mapping[tuple[str, str], str] = {
    ("clip", "token"): "vanilla",
    ("clip", "sequence-token"): "gspo",
    ("cispo", "token"): "cispo",
    ("sapo", "token"): "sapo",
    ("gmpo", "token"): "geo_mean",
    ("reinforce", "token"): "gpg",
    ("dppo-tv", "token"): "dppo_tv",
    ("dppo-kl", "token"): "dppo_kl",
    ("kl-cov", "token"): "kl_cov",
    ("clip-cov", "token"): "clip_cov",
}
OWN_MODE = {"sapo": "response-mean", "geo_mean": "response-mean"}
"""The losses that do not follow loss_agg_mode."""

KLS = {"k1": "kl", "k2": "mse", "k3": "low_var_kl", "abs": "abs"}
KLS |= {f"{kl}+": f"{own}+" for kl, own in KLS.items()}
NEVER = 1e9
"""A clip_ratio_c that no ratio reaches: verl's vanilla always has a dual clip."""

ESTIMATORS = {
    "group-mean": "grpo_nostd",
    "group-std": "grpo",
    "leave-one-out": "rloo",
    "length-weighted": "opo",
    "pass-at-k": "grpo_passk_nostd",
    "token-whiten": "reinforce_plus_plus_baseline",
}


@pytest.fixture
def grpo_vectors() -> Loss:
    refuses = {"log-prob-nan": "nan", "dual-clip-below-1": AssertionError}
    return Loss(answer, claims("verl 0.9.1", refuses=refuses))


def answer(case: Case) -> dict[str, Any]:
    if "surrogate" not in case.choices:
        return {"advantages": advantages(case)}
    batch, how, choices = given(case.input), case.hyperparameters, case.choices
    mask = verl_functions.tensor(batch, "mask")
    has_kl = choices["kl"] != "none"
    bounds = (how.get("kl_input_clamp", 20.0), how.get("kl_output_clamp", 10.0))
    if has_kl and bounds != (20.0, 10.0):
        raise NotClaimedError("verl bounds the KL at 20 and 10")
    made = verl_functions.compute(
        batch,
        name_of(case),
        mode=MODES[choices["aggregate"]],
        kl=KLS[choices["kl"]] if has_kl else "kl",
        beta=how["beta"] if has_kl else 0.0,
        entropy_coeff=how.get("entropy_coef", 0.0),
        rollout_is_weights=weights(case, batch, mask),
        **settings_of(case),
    )
    found = {"loss": made.loss, "gradient": made.gradient}
    more = {"metrics": logged(batch, mask, made.metrics)} if case.file == "metrics" else {}
    return found | more


def name_of(case: Case) -> str:
    pair = (case.choices["surrogate"], case.choices["ratio"])
    if pair not in LOSSES:
        raise NotClaimedError(f"no policy loss with {' and '.join(pair)}")
    name, mode = LOSSES[pair], case.choices["aggregate"]
    if OWN_MODE.get(name, mode) != mode:
        raise NotClaimedError(f"verl's {name} is a {OWN_MODE[name]}")
    return name


def settings_of(case: Case) -> dict[str, Any]:
    how, step, name = case.hyperparameters, case.step, name_of(case)
    settings: dict[str, Any] = {"clip_ratio_c": how.get("dual_clip", NEVER)}
    for own, theirs in (
        ("epsilon_low", "clip_ratio_low"),
        ("epsilon_high", "clip_ratio_high"),
        ("tau_pos", "tau_pos"),
        ("tau_neg", "tau_neg"),
        ("max_completion_length", "loss_scale_factor"),
        ("divergence_low", "clip_ratio_low"),
        ("divergence_high", "clip_ratio_high"),
        *((name, name) for name in verl_functions.POLICY),
    ):
        if own in how:
            settings[theirs] = how[own]
    if "dual_clip" in how and name != "vanilla":
        raise NotClaimedError(f"verl's {name} has no dual clip")
    if case.choices["split"] != "none":
        settings |= {
            "dp_size": step.ranks,
            "batch_num_tokens": step.tokens,
            "global_batch_size": step.responses,
        }
    return settings


def weights(case: Case, batch: Ragged, mask: torch.Tensor) -> torch.Tensor | None:
    choice, how = case.choices["correction"], case.hyperparameters
    if choice == "none":
        return None
    low, high = how.get("is_low"), how["is_high"]
    gap = verl_functions.tensor(batch, "log_probs_old") - verl_functions.tensor(
        batch, "log_probs_rollout"
    )
    found, _ = rollout_corr_helper.compute_rollout_correction_weights(
        gap,
        mask,
        rollout_is=choice.partition("-")[0],
        rollout_is_threshold=high if low is None else f"{low}_{high}",
        rollout_is_batch_normalize=how.get("is_batch_normalize", False),
    )
    return found


def logged(batch: Ragged, mask: torch.Tensor, metrics: Mapping[str, float]) -> dict[str, float]:
    """verl's metrics by our names: those of the loss, and of the rollout correction."""
    off_policy = rollout_corr_helper.compute_offpolicy_metrics(
        verl_functions.tensor(batch, "log_probs_old"),
        verl_functions.tensor(batch, "log_probs_rollout"),
        mask,
    )
    found = {"rollout_kl": off_policy["kl"], "rollout_k3": off_policy["k3_kl"]}
    names = {
        "clip_fraction": "actor/pg_clipfrac",
        "dual_clip_fraction": "actor/pg_clipfrac_lower",
        "ppo_kl": "actor/ppo_kl",
    }
    return found | {name: metrics[own] for name, own in names.items() if own in metrics}


def advantages(case: Case) -> list[float]:
    how, choice = case.hyperparameters, case.choices["advantage"]
    if how.get("std_ddof", 1) != 1 or how.get("std_eps", 1e-6) != 1e-6:
        raise NotClaimedError("verl's std has ddof 1 and 1e-6 added")
    batch = given(case.input)
    if any(len(row) == 0 for row in batch.mask):
        batch = replace(batch, mask=[np.ones(1, dtype=np.int64) for _ in batch.mask])
    kl = None
    if case.choices["kl"] == "k1-in-reward":
        kl = verl_functions.kl_in_reward(batch, how["beta"], "kl")
    made = verl_functions.advantages(batch, ESTIMATORS[choice], penalty=kl)
    return [of_response(row, counted) for row, counted in zip(made, batch.mask, strict=True)]


def of_response(row: torch.Tensor, counted: Any) -> float:
    """verl gives each token its response's advantage, and 0 where the mask is 0."""
    kept = row[: len(counted)][torch.tensor(counted, dtype=torch.bool)]
    if not len(kept):
        raise NotClaimedError("verl gives a response without tokens no advantage")
    assert bool((kept == kept[0]).all())
    return float(kept[0])
