"""verl 0.9.1's rollout correction, executed in float64 beside ours."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

from grpo_cli import VARIANTS, evaluate

from . import verl_functions
from .agreement import AGREEMENT, golden
from .batches import Ragged, flat, given, ragged
from .verl_functions import FRAMEWORK, TABLE, Computed, bypass, decoupled

MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")
KINDS = ("usual", "near", "extreme", "hollow")
REJECTIONS, WEIGHTS = TABLE["rejections"], TABLE["weights"]
COEFFICIENTS = {"beta": 0.3, "entropy_coeff": 0.02}


def compare(
    batch: Ragged,
    row: str,
    mode: str,
    theirs: Computed,
    said: dict[str, Any],
    *,
    stages: dict[str, str] | None = None,
    label: str = "",
    limit: float = 1e-9,
) -> None:
    hyper = {"beta": 0.3, "entropy_coef": 0.02, **said}
    stages = stages or {"aggregate": f"verl/{mode}"}
    ours = evaluate(batch.record(hyperparameters=hyper), row, stages=stages)
    name, case = label or row, f"{batch.kind} {batch.seed} {mode} {said}"
    assert np.isfinite(theirs.loss), case
    AGREEMENT.close(FRAMEWORK, name, "loss", ours.loss, theirs.loss, case=case)
    wanted, found = flat(batch.counted(theirs.gradient)), -flat(ours.gradient)
    AGREEMENT.close(FRAMEWORK, name, "gradient", found, wanted, limit=limit, case=case)


def compare_corrected(batch: Ragged, loss: str, mode: str, said: dict[str, Any]) -> None:
    """The row of a loss with verl's correction, where anything is kept."""
    if not enough(batch, said, "log_probs_old"):
        return
    row = f"verl/{loss}"
    own = VARIANTS[row].kl_aggregate is not None
    where = ("kl_aggregate", "entropy_aggregate") if own else ("aggregate",)
    choice = "verl/decoupled-geometric" if loss == "geo_mean" else "verl/decoupled"
    stages = dict.fromkeys(where, f"verl/{mode}") | {"correction": choice}
    theirs, label = (
        decoupled(batch, mode, said, loss, **COEFFICIENTS),
        f"{row} --correction {choice}",
    )
    near = 1e-7 if loss == "sapo" else 1e-9
    compare(batch, row, mode, theirs, said, stages=stages, label=label, limit=near)


def enough(batch: Ragged, settings: dict[str, Any], first: str) -> bool:
    """Whether anything is kept: verl's mean over no token is nan, ours 0."""
    mask = verl_functions.tensor(batch, "mask")
    tables = (verl_functions.tensor(batch, name) for name in (first, "log_probs_rollout"))
    kept = compute_rollout_correction_and_rejection_mask(*tables, mask, **settings)[1]
    return bool(kept.any())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rejection", REJECTIONS)
def test_rejections(rejection: str, kind: str) -> None:
    compared = 0
    for seed, threshold in enumerate((*REJECTIONS[rejection], 0.5 if "k1" not in rejection else 3)):
        settings = {"rollout_rs": rejection, "rollout_rs_threshold": threshold}
        for mode in MODES:
            batch = ragged(seed + 300, kind)
            weights = WEIGHTS[(seed + MODES.index(mode)) % len(WEIGHTS)]
            both = {**weights, **settings}
            if enough(batch, both, "log_probs_old"):
                compare(
                    batch,
                    "verl/decoupled_seq_is",
                    mode,
                    decoupled(batch, mode, both, **COEFFICIENTS),
                    both,
                )
                compared += 1
            if enough(batch, both, "log_probs_new"):
                pg = {**both, "loss_type": "reinforce"}
                compare(
                    batch, "verl/bypass_pg_is", mode, bypass(batch, mode, pg, **COEFFICIENTS), both
                )
                clip = {**both, "loss_type": "ppo_clip"}
                compare(
                    batch,
                    "verl/bypass_ppo_clip",
                    mode,
                    bypass(batch, mode, clip, **COEFFICIENTS),
                    settings,
                )
    assert compared or kind == "extreme"


def weighed() -> Iterator[tuple[dict[str, Any], str]]:
    """Weights with kinds; verl divides by 0 in a metric where no token has any weight."""
    for weights in WEIGHTS:
        for kind in KINDS:
            if kind != "extreme" or weights.get("rollout_is_threshold") != "0.5_2.0":
                yield weights, kind


@pytest.mark.parametrize(("weights", "kind"), list(weighed()), ids=str)
def test_weights(weights: dict[str, Any], kind: str) -> None:
    for seed, mode in enumerate(MODES):
        batch = ragged(seed + 330, kind)
        row = "verl/decoupled_seq_is"
        compare(batch, row, mode, decoupled(batch, mode, weights, **COEFFICIENTS), weights)
        pg = {**weights, "loss_type": "reinforce"}
        compare(batch, "verl/bypass_pg_is", mode, bypass(batch, mode, pg, **COEFFICIENTS), weights)


@pytest.mark.parametrize(("weights", "kind"), list(weighed()), ids=str)
def test_weights_of_geo_mean(weights: dict[str, Any], kind: str) -> None:
    """It takes the geometric mean of a response's weights; whole responses may be rejected."""
    for seed, mode in enumerate(MODES):
        rejection = {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.012} if seed else {}
        compare_corrected(ragged(seed + 340, kind), "geo_mean", mode, weights | rejection)


@pytest.mark.parametrize("loss_mode", ["gspo", "geo_mean", "kl_cov", "sapo", "cispo", "dppo_kl"])
def test_losses_do_not_see_what_is_rejected(loss_mode: str) -> None:
    """verl takes rejected tokens out of the mask before the means over responses and batch."""
    for seed, (rejection, thresholds) in enumerate(REJECTIONS.items()):
        settings = {"rollout_rs": rejection, "rollout_rs_threshold": thresholds[0]}
        both = WEIGHTS[seed % len(WEIGHTS)] | settings
        compare_corrected(ragged(seed + 370), loss_mode, MODES[seed % len(MODES)], both)


PRESETS = [
    name.removeprefix("verl/") for name in VARIANTS if name.startswith(("verl/dec", "verl/byp"))
]


def preset_batch(seed: int, kind: str) -> Ragged:
    """A batch half of whose engine log-probs are within what the presets allow."""
    batch = ragged(seed, kind)
    for index, row in enumerate(batch.columns["log_probs_rollout"]):
        near = batch.columns["log_probs_old"][index] + 3e-4 * np.sin(np.arange(len(row)))
        if index % 2:
            row[:] = np.minimum(near, -1e-6)
            batch.columns["log_probs_new"][index][:] = np.minimum(near + 2e-4, -1e-6)
    return batch


@pytest.mark.parametrize("preset", PRESETS)
def test_presets(preset: str) -> None:
    for seed, kind in enumerate(("near", "usual", "on-policy")):
        batch = preset_batch(seed + 350, kind)
        theirs = verl_functions.preset(preset, batch, {}, **COEFFICIENTS)
        assert np.count_nonzero(theirs.gradient)
        compare(batch, f"verl/{preset}", "token-mean", theirs, {})


def executed(case: dict[str, Any]) -> dict[str, Any]:
    """What verl makes of a golden case with one of its presets, of which the record says more."""
    settings, batch = dict(case["record"]["hyperparameters"]), given(case["record"])
    how = {"beta": settings.pop("beta"), "entropy_coeff": settings.pop("entropy_coef")}
    name = case["variant"].removeprefix("verl/")
    found = verl_functions.preset(name, batch, settings, **how)
    return {"loss": found.loss, "gradient": batch.counted(found.gradient)}


def test_golden(writing: bool) -> None:
    golden("verl_rollout", executed, writing=writing, version=version("verl"))


def test_every_preset_has_a_row() -> None:
    made = [
        name for name in vars(RolloutCorrectionConfig) if name.startswith(("decoup", "bypass_"))
    ]
    presets = {
        name for name in made if isinstance(vars(RolloutCorrectionConfig)[name], classmethod)
    }
    assert presets == set(PRESETS)
