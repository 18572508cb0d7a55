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
from .agreement import AGREEMENT, write_golden
from .batches import Ragged, flat, ragged

FRAMEWORK = "verl 0.9.1"
MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")
KINDS = ("usual", "near", "extreme", "hollow")
REJECTIONS: dict[str, tuple[Any, ...]] = {
    "token_k1": ("0.9_1.1", 1.05),
    "token_k2": (0.01,),
    "token_k3": (0.01,),
    "seq_sum_k1": ("0.7_1.5", 2.0),
    "seq_sum_k2": (0.05,),
    "seq_sum_k3": (0.05,),
    "seq_mean_k1": ("0.97_1.02", 1.1),
    "seq_mean_k2": (0.01,),
    "seq_mean_k3": (0.01,),
    "seq_max_k2": (0.02,),
    "seq_max_k3": (0.02,),
    "token_k1,seq_mean_k3": ("0.9_1.2,0.02",),
    "seq_max_k2,token_k3,token_k3": (0.03,),
}
WEIGHTS: tuple[dict[str, Any], ...] = (
    {"rollout_is": None},
    {"rollout_is": "token", "rollout_is_threshold": 1.1},
    {"rollout_is": "sequence", "rollout_is_threshold": 1.5},
    {"rollout_is": "token", "rollout_is_threshold": "0.9_1.2"},
    {"rollout_is": "sequence", "rollout_is_threshold": "0.5_2.0"},
    {"rollout_is": "token", "rollout_is_threshold": 1.1, "rollout_is_batch_normalize": True},
    {"rollout_is": "sequence", "rollout_is_threshold": 1.5, "rollout_is_batch_normalize": True},
)
BETA, ENTROPY = 0.3, 0.02


def decoupled(
    batch: Ragged, mode: str, settings: dict[str, Any], loss_mode: str = "vanilla"
) -> tuple[float, Any]:
    """Loss and gradient as verl's trainer makes them: the mask is the rejection's from there on."""
    names = ("log_probs_old", "log_probs_rollout", "mask")
    found, mask, _ = compute_rollout_correction_and_rejection_mask(
        *(verl_functions.tensor(batch, name) for name in names), **settings
    )
    weights = None if found is None else found.batch["rollout_is_weights"]
    return _total(batch, mode, loss_mode, mask=mask, rollout_is_weights=weights)


def bypass(batch: Ragged, mode: str, settings: dict[str, Any]) -> tuple[float, Any]:
    """The same where compute_policy_loss_bypass_mode masks for itself."""
    return _total(batch, mode, "bypass_mode", old="log_probs_rollout", correction=settings)


def _total(batch: Ragged, mode: str, loss: str, **how: Any) -> tuple[float, Any]:
    found = verl_functions.compute(batch, loss, mode=mode, beta=BETA, entropy_coeff=ENTROPY, **how)
    return found.loss, found.gradient


def compare(
    batch: Ragged,
    row: str,
    mode: str,
    theirs: tuple[float, Any],
    given: dict[str, Any],
    *,
    stages: dict[str, str] | None = None,
    label: str = "",
    limit: float = 1e-9,
) -> None:
    hyper = {"beta": BETA, "entropy_coef": ENTROPY, **given}
    stages = stages or {"aggregate": f"verl/{mode}"}
    ours = evaluate(batch.record(hyperparameters=hyper), row, stages=stages)
    (loss, gradient), name = theirs, label or row
    case = f"{batch.kind} {batch.seed} {mode} {given}"
    assert np.isfinite(loss), case
    AGREEMENT.close(FRAMEWORK, name, "loss", ours.loss, loss, case=case)
    wanted, found = flat(batch.counted(gradient)), -flat(ours.gradient)
    AGREEMENT.close(FRAMEWORK, name, "gradient", found, wanted, limit=limit, case=case)


def compare_corrected(batch: Ragged, loss: str, mode: str, given: dict[str, Any]) -> None:
    """The row of a loss with verl's correction, where anything is kept."""
    if not enough(batch, given, "log_probs_old"):
        return
    row = f"verl/{loss}"
    own = VARIANTS[row].kl_aggregate is not None
    where = ("kl_aggregate", "entropy_aggregate") if own else ("aggregate",)
    choice = "verl/decoupled-geometric" if loss == "geo_mean" else "verl/decoupled"
    stages = dict.fromkeys(where, f"verl/{mode}") | {"correction": choice}
    theirs, label = decoupled(batch, mode, given, loss), f"{row} --correction {choice}"
    near = 1e-7 if loss == "sapo" else 1e-9
    compare(batch, row, mode, theirs, given, stages=stages, label=label, limit=near)


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
                compare(batch, "verl/decoupled_seq_is", mode, decoupled(batch, mode, both), both)
                compared += 1
            if enough(batch, both, "log_probs_new"):
                pg = {**both, "loss_type": "reinforce"}
                compare(batch, "verl/bypass_pg_is", mode, bypass(batch, mode, pg), both)
                clip = {**both, "loss_type": "ppo_clip"}
                compare(batch, "verl/bypass_ppo_clip", mode, bypass(batch, mode, clip), settings)
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
        compare(batch, row, mode, decoupled(batch, mode, weights), weights)
        pg = {**weights, "loss_type": "reinforce"}
        compare(batch, "verl/bypass_pg_is", mode, bypass(batch, mode, pg), weights)


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
        given = WEIGHTS[seed % len(WEIGHTS)] | settings
        compare_corrected(ragged(seed + 370), loss_mode, MODES[seed % len(MODES)], given)


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


def preset_loss(preset: str, batch: Ragged) -> tuple[float, Any]:
    """What verl makes of a batch with one of its presets."""
    config = getattr(RolloutCorrectionConfig, preset)()
    names = ("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize")
    settings = {name: getattr(config, name) for name in names}
    settings |= {name: getattr(config, name) for name in ("rollout_rs", "rollout_rs_threshold")}
    if config.bypass_mode:
        return bypass(batch, "token-mean", settings | {"loss_type": config.loss_type})
    return decoupled(batch, "token-mean", settings)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets(preset: str) -> None:
    for seed, kind in enumerate(("near", "usual", "on-policy")):
        batch = preset_batch(seed + 350, kind)
        theirs = preset_loss(preset, batch)
        assert np.count_nonzero(theirs[1])
        compare(batch, f"verl/{preset}", "token-mean", theirs, {})


def test_write_the_golden_numbers(writing: bool) -> None:
    """Leaves verl's own numbers for the ordinary suite."""
    batch = preset_batch(360, "usual")
    cases = [_golden(batch, f"verl/{preset}", {}, preset_loss(preset, batch)) for preset in PRESETS]
    wide = ragged(361, "usual")
    for index, (rejection, thresholds) in enumerate(REJECTIONS.items()):
        given = {"rollout_rs": rejection, "rollout_rs_threshold": thresholds[0]}
        given |= WEIGHTS[index % len(WEIGHTS)]
        theirs = decoupled(wide, "token-mean", given)
        if np.isfinite(theirs[0]):
            cases.append(_golden(wide, "verl/decoupled_seq_is", given, theirs))
    if writing:
        head = {
            "framework": "verl",
            "version": version("verl"),
            "how": "tests/parity/test_verl_rollout.py: rollout_corr_helper and core_algos in "
            "float64; policy loss + 0.3·KL − 0.02·entropy; the gradient is autograd's",
        }
        write_golden("verl_rollout", head | {"cases": cases})


def _golden(
    batch: Ragged, row: str, given: dict[str, Any], theirs: tuple[float, Any]
) -> dict[str, Any]:
    hyper = {"beta": BETA, "entropy_coef": ENTROPY, **given}
    return {
        "variant": row,
        "record": batch.record(hyperparameters=hyper),
        "loss": theirs[0],
        "gradient": [line.tolist() for line in batch.counted(theirs[1])],
    }


def test_every_preset_has_a_row() -> None:
    made = [
        name for name in vars(RolloutCorrectionConfig) if name.startswith(("decoup", "bypass_"))
    ]
    presets = {
        name for name in made if isinstance(vars(RolloutCorrectionConfig)[name], classmethod)
    }
    assert presets == set(PRESETS)
