"""verl 0.9.1's rollout correction, executed in float64 beside ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
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
from .test_verl import stages_for
from .verl_functions import FRAMEWORK, TABLE, Computed, bypass, decoupled

MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")
KINDS = ("usual", "near", "extreme", "hollow")
REJECTIONS, WEIGHTS = TABLE["rejections"], TABLE["weights"]
BETA, ENTROPY = 0.3, 0.02


def compare(
    batch: Ragged,
    row: str,
    mode: str,
    run: Callable[..., Computed],
    settings: dict[str, Any],
    *,
    said: dict[str, Any] | None = None,
    stages: dict[str, str] | None = None,
    label: str = "",
    limit: float = 1e-9,
    **more: Any,
) -> None:
    """Loss and gradient of a row against verl's; the record says the settings, or ``said``."""
    theirs = run(batch, mode, settings | more, beta=BETA, entropy_coeff=ENTROPY)
    said = settings if said is None else said
    hyper = {"beta": BETA, "entropy_coef": ENTROPY, **said}
    stages = stages or {"aggregate": f"verl/{mode}"}
    ours = evaluate(batch.record(hyperparameters=hyper), row, stages=stages)
    name, case = label or row, f"{batch.kind} {batch.seed} {mode} {said}"
    assert np.isfinite(theirs.loss), case
    AGREEMENT.close(FRAMEWORK, name, "loss", ours.loss, theirs.loss, case=case)
    wanted, found = flat(batch.counted(theirs.gradient)), -flat(ours.gradient)
    assert wanted.any() or settings, case  # a preset leaves something
    AGREEMENT.close(FRAMEWORK, name, "gradient", found, wanted, limit=limit, case=case)


def compare_corrected(batch: Ragged, loss: str, mode: str, settings: dict[str, Any]) -> None:
    """The row of a loss with verl's correction, where anything is kept."""
    if not enough(batch, settings, "log_probs_old"):
        return
    choice = "verl/decoupled-geometric" if loss == "geo_mean" else "verl/decoupled"
    compare(
        batch,
        f"verl/{loss}",
        mode,
        partial(decoupled, loss=loss),
        settings,
        stages=stages_for(loss, mode, correction=choice),
        label=f"verl/{loss} --correction {choice}",
        limit=1e-7 if loss == "sapo" else 1e-9,
    )


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
            both = WEIGHTS[(seed + MODES.index(mode)) % len(WEIGHTS)] | settings
            if enough(batch, both, "log_probs_old"):
                compare(batch, "verl/decoupled_seq_is", mode, decoupled, both)
                compared += 1
            if enough(batch, both, "log_probs_new"):
                compare(batch, "verl/bypass_pg_is", mode, bypass, both, loss_type="reinforce")
                clip = {"said": settings, "loss_type": "ppo_clip"}
                compare(batch, "verl/bypass_ppo_clip", mode, bypass, both, **clip)
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
        compare(batch, "verl/decoupled_seq_is", mode, decoupled, weights)
        compare(batch, "verl/bypass_pg_is", mode, bypass, weights, loss_type="reinforce")


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
        run = partial(verl_functions.preset, preset)
        compare(batch, f"verl/{preset}", "token-mean", run, {})


def executed(case: dict[str, Any]) -> dict[str, Any]:
    """What verl makes of a golden case with one of its presets, of which the record says more."""
    settings, batch = dict(case["record"]["hyperparameters"]), given(case["record"])
    how = {"beta": settings.pop("beta"), "entropy_coeff": settings.pop("entropy_coef")}
    name = case["variant"].removeprefix("verl/")
    found = verl_functions.preset(name, batch, "token-mean", settings, **how)
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
