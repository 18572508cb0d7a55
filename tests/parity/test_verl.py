"""verl 0.9.1's functions, executed in float64 beside the rows of variants/verl.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
import torch
from frameworks.verl_metrics import metrics

from grpo_cli import InputError, evaluate

from . import verl_functions
from .agreement import AGREEMENT, write_golden
from .batches import KINDS, Ragged, evaluated, flat, ragged

FRAMEWORK = "verl 0.9.1"
LOSSES: dict[str, dict[str, Any]] = {
    "vanilla": {},
    "gspo": {},
    "sapo": {},
    "gpg": {},
    "clip_cov": {"clip_cov_ratio": 0.1, "clip_cov_lb": 0.02, "clip_cov_ub": 0.9},
    "kl_cov": {"kl_cov_ratio": 0.12, "ppo_kl_coef": 0.7},
    "geo_mean": {"clip_ratio_low": 0.15, "clip_ratio_high": 0.25},
    "dppo_tv": {"clip_ratio_low": 0.02, "clip_ratio_high": 0.03, "clip_ratio_c": 1.4},
    "dppo_kl": {"clip_ratio_low": 0.01, "clip_ratio_high": 0.02, "clip_ratio_c": 1.4},
    "dro": {"dro_beta": 0.3},
    "cispo": {"clip_ratio_low": 0.1, "clip_ratio_high": 0.3},
}
MODES = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)
OWN_MODE = {"sapo", "geo_mean"}
"""The losses that do not follow loss_agg_mode."""

KLS = ("kl", "abs", "mse", "low_var_kl", "kl+", "abs+", "mse+", "low_var_kl+")
ESTIMATORS = {
    "verl/grpo": ("grpo", True),
    "verl/grpo_nostd": ("grpo", False),
    "verl/rloo": ("rloo", True),
    "verl/rloo_vectorized": ("rloo_vectorized", True),
    "verl/opo": ("opo", True),
    "verl/grpo_passk": ("grpo_passk", True),
    "verl/grpo_passk_nostd": ("grpo_passk", False),
    "verl/gpg": ("gpg", True),
    "verl/reinforce_plus_plus": ("reinforce_plus_plus", True),
    "verl/reinforce_plus_plus_baseline": ("reinforce_plus_plus_baseline", True),
}


def test_the_version_is_the_one_that_the_rows_name() -> None:
    assert version("verl") == "0.9.1"


def stages_for(loss: str, mode: str, **more: str) -> dict[str, str]:
    where = "kl_aggregate" if loss in OWN_MODE else "aggregate"
    swapped = {where: f"verl/{mode}", **more}
    if loss in OWN_MODE:
        swapped["entropy_aggregate"] = f"verl/{mode}"
    return swapped


def compare(
    batch: Ragged,
    loss: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    mode: str = "token-mean",
    kl: str = "low_var_kl",
    beta: float = 0.0,
    entropy_coeff: float = 0.0,
    label: str = "",
    stages: dict[str, str] | None = None,
    **settings: Any,
) -> None:
    """Loss, gradient, KL and metrics of a row against verl's function."""
    if loss == "clip_cov":  # so that the tokens taken out can be told from those left alone
        batch.advantages[batch.advantages == 0.0] = 0.01
    row, case = f"verl/{loss}", f"{batch.kind} {batch.seed} {mode} {kl} {settings}"
    settings = LOSSES[loss] | settings
    given: dict[str, Any] = {"beta": beta, "entropy_coef": entropy_coeff} | settings
    if mode == "seq-mean-token-sum-norm":
        given["response_length"] = batch.width
    given = {name: value for name, value in given.items() if value is not None}
    stages = stages_for(loss, mode, kl=f"verl/{kl}") if stages is None else stages
    ours = _with_hyperparameters(batch, row, stages, given)
    if loss == "clip_cov":
        _choose_as_we_did(monkeypatch, ours)
    theirs = verl_functions.compute(
        batch, loss, mode=mode, kl=kl, beta=beta, entropy_coeff=entropy_coeff, **settings
    )
    name = label or row
    gradient = flat(batch.counted(theirs.gradient))
    AGREEMENT.close(FRAMEWORK, name, "policy loss", -ours.total["policy"], theirs.policy, case=case)
    AGREEMENT.close(FRAMEWORK, name, "loss", ours.loss, theirs.loss, case=case)
    # verl's σ·(1 − σ) cancels where the gate is nearly open, ours does not
    near = 1e-7 if loss == "sapo" else 1e-9
    AGREEMENT.close(
        FRAMEWORK, name, "gradient", -flat(ours.gradient), gradient, limit=near, case=case
    )
    if beta:
        kld = flat(batch.counted(theirs.kl))
        # verl's e^x − x − 1 cancels near 0, ours does not
        AGREEMENT.close(FRAMEWORK, name, "kl", ours.breakdown.kl, kld, limit=1e-8, case=case)
    found = metrics(ours.breakdown, loss)
    assert set(found) == set(theirs.metrics)
    for key, value in theirs.metrics.items():
        scale = max(abs(value), 1e-3)
        short = key.removeprefix("actor/")
        AGREEMENT.close(FRAMEWORK, name, short, found[key] / scale, value / scale, case=case)


def _with_hyperparameters(
    batch: Ragged, row: str, stages: dict[str, str], given: dict[str, Any]
) -> Any:
    """The settings go into the record, where those that a row does not take are ignored."""
    record = batch.record(hyperparameters=given)
    return evaluate(record, row, stages=stages)


def _choose_as_we_did(monkeypatch: pytest.MonkeyPatch, ours: Any) -> None:
    """Lets verl draw the tokens that we drew: its own draw is random."""
    breakdown = ours.breakdown
    values = breakdown.objective.surrogate.values
    advantage, log_probs = breakdown.advantage, breakdown.batch.log_probs_new
    covariance = (advantage - advantage.mean()) * (log_probs - log_probs.mean())
    plain = np.where(
        advantage > 0,
        breakdown.ratio > 1 + values["epsilon_high"],
        (breakdown.ratio < 1 - values["epsilon_low"]) & (advantage < 0),
    )
    inside = (covariance > values["clip_cov_lb"]) & (covariance < values["clip_cov_ub"])
    candidates = np.flatnonzero(inside & ~plain)
    taken = np.flatnonzero((breakdown.clip != 0) & ~plain)
    assert set(taken) <= set(candidates)
    places = np.searchsorted(candidates, taken).tolist()
    monkeypatch.setattr(torch, "randperm", verl_functions.chosen(places))


def telling(batch: Ragged, loss: str) -> bool:
    """Whether the covariances tell the tokens apart; where A is the same for all they are noise."""
    weight = [row.sum() for row in batch.mask]
    return not loss.endswith("cov") or len(np.unique(batch.advantages[np.array(weight) > 0])) > 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", LOSSES)
def test_policy_losses(loss: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, mode in enumerate(MODES):
        batch = ragged(seed, kind)
        if telling(batch, loss):
            compare(batch, loss, monkeypatch, mode=mode, beta=0.1 * (seed % 3))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", LOSSES)
def test_rows_as_they_are(loss: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = ragged(180, kind)
    if telling(batch, loss):
        compare(batch, loss, monkeypatch, beta=0.3, entropy_coeff=0.02, stages={})


@pytest.mark.parametrize("loss", LOSSES)
def test_policy_losses_with_other_settings(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    varied = {
        "vanilla": {"clip_ratio_low": 0.05, "clip_ratio_high": 0.4, "clip_ratio_c": 1.2},
        "gspo": {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4},
        "sapo": {"tau_pos": 0.6, "tau_neg": 2.5},
        "clip_cov": {"clip_cov_ratio": 1.0},
        "kl_cov": {"kl_cov_ratio": 1.0, "ppo_kl_coef": 0.05},
        "dppo_tv": {"clip_ratio_c": 10000.0},
        "dppo_kl": {"clip_ratio_c": 10000.0},
        "cispo": {"clip_ratio_low": 10.0, "clip_ratio_high": 0.2},
    }.get(loss, {})
    for seed, mode in enumerate(MODES):
        batch = ragged(seed + 20, KINDS[seed])
        if telling(batch, loss):
            compare(batch, loss, monkeypatch, mode=mode, beta=0.05, entropy_coeff=0.03, **varied)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loss", ["vanilla", "sapo", "geo_mean"])
def test_denominators_of_the_whole_mini_batch(
    loss: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = {"batch_num_tokens": 321, "global_batch_size": 48, "dp_size": 4}
    for seed, kind in enumerate(("usual", "hollow")):
        batch = ragged(seed + 40, kind)
        compare(batch, loss, monkeypatch, mode=mode, beta=0.1, **shared, loss_scale_factor=None)
        compare(batch, loss, monkeypatch, mode=mode, beta=0.1, **shared, loss_scale_factor=128)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kl", KLS)
def test_kl_penalties(kl: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(2):
        batch = ragged(seed + 60, kind)
        for index, row in enumerate(batch.columns["log_probs_ref"]):
            if index % 2:  # far enough for both clamps of low_var_kl
                row += np.random.default_rng(seed).normal(size=len(row)) * 12.0
                np.minimum(row, -1e-6, out=row)
        mode = MODES[seed]
        compare(batch, "vanilla", monkeypatch, mode=mode, kl=kl, beta=0.3, label=f"verl/{kl} KL")


SINGLE = 2e-7
"""verl's error where a constant of its own is single precision: the std 1 of a group of one (grpo,
gdpo), the α of gpg."""


def limit(choice: str) -> float:
    """The largest relative error that verl's own precision allows."""
    if choice in ("verl/grpo", "verl/gpg"):
        return SINGLE
    return 1e-8 if choice == "verl/opo" else 1e-9  # opo: 0 by cancellation, where verl has noise


def without_noise(batch: Ragged, table: torch.Tensor) -> Any:
    """verl's advantages; the rounding noise of equal rewards taken for the 0 that it is."""
    values = table.numpy().copy()
    for group in np.unique(batch.groups):
        members = batch.groups == group
        if members.sum() > 1 and np.ptp(batch.rewards[members]) == 0:
            assert np.abs(values[members]).max() < 1e-8
            values[members] = 0.0
    return values


def compare_advantages(batch: Ragged, choice: str, theirs: Any, *, limit: float = 1e-9) -> None:
    ours = evaluated(batch, "verl/vanilla", stages={"advantage": choice}, rewards=True)
    AGREEMENT.close(
        FRAMEWORK,
        f"--advantage {choice}",
        "advantages",
        flat(ours.advantages),
        flat(batch.counted(theirs)),
        limit=limit,
        case=f"{batch.kind} {batch.seed}",
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("choice", ESTIMATORS)
def test_advantages(choice: str, kind: str) -> None:
    estimator, norm = ESTIMATORS[choice]
    for seed in range(3):
        batch = ragged(seed + 80, kind)
        if "passk" in choice and kind == "singletons":
            with pytest.raises(ValueError, match="at least 2"):
                verl_functions.advantages(batch, estimator, norm=norm)
            with pytest.raises(InputError, match="at least 2"):
                evaluated(batch, "verl/vanilla", stages={"advantage": choice}, rewards=True)
            continue
        theirs = verl_functions.advantages(batch, estimator, norm=norm)
        if "plus_plus" not in choice:
            theirs = without_noise(batch, theirs)
        compare_advantages(batch, choice, theirs, limit=limit(choice))


@pytest.mark.parametrize("kind", KINDS)
def test_grpo_vectorized_takes_its_statistics_in_single_precision(kind: str) -> None:
    for seed in range(3):
        batch = ragged(seed + 90, kind)
        theirs = verl_functions.advantages(batch, "grpo_vectorized").numpy()
        for group in np.unique(batch.groups):
            members = batch.groups == group
            if members.sum() > 1 and np.ptp(batch.rewards[members]) == 0:
                assert np.abs(theirs[members]).max() < 0.1  # 0 but for single precision
                theirs[members] = 0.0
        ours = evaluated(
            batch, "verl/vanilla", stages={"advantage": "verl/grpo_vectorized"}, rewards=True
        )
        np.testing.assert_allclose(
            flat(ours.advantages), flat(batch.counted(theirs)), rtol=2e-6, atol=2e-6
        )


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("kl", ["kl", "abs", "mse", "low_var_kl"])
def test_the_kl_in_the_reward(kl: str, gamma: float) -> None:
    for seed, kind in enumerate(("usual", "hollow", "singletons")):
        batch = ragged(seed + 100, kind)
        for choice, (estimator, norm) in ESTIMATORS.items():
            if "passk" in choice:
                continue
            old, ref = (verl_functions.tensor(batch, f"log_probs_{p}") for p in ("old", "ref"))
            kld = verl_functions.core.kl_penalty(old, ref, kl)
            penalty = 0.2 * kld * verl_functions.tensor(batch, "mask")
            theirs = verl_functions.advantages(
                batch, estimator, penalty=penalty, gamma=gamma, norm=norm
            )
            more = {"gamma": gamma} if choice == "verl/reinforce_plus_plus" else {}
            ours = evaluated(
                batch,
                "verl/vanilla",
                stages={"advantage": choice, "kl": f"verl/{kl}-in-reward"},
                rewards=True,
                beta=0.2,
                **more,
            )
            AGREEMENT.close(
                FRAMEWORK,
                f"--advantage {choice} --kl verl/…-in-reward",
                "advantages",
                flat(ours.advantages),
                flat(batch.counted(theirs)),
                limit=limit(choice),
                case=f"{kind} {seed} {kl}",
            )


@pytest.mark.parametrize("kind", KINDS)
def test_gdpo(kind: str) -> None:
    for seed in range(2):
        batch = ragged(seed + 120, kind)
        draw = np.random.default_rng(seed)
        columns = draw.choice([0.0, 0.25, 0.5, 1.0, 3.0], size=(batch.count, 3))
        record = batch.record(rewards=True) | {"rewards": columns.tolist()}
        ours = evaluate(record, "verl/vanilla", stages={"advantage": "verl/gdpo"})
        theirs = verl_functions.gdpo(batch, columns)  # verl: group statistics in single precision
        np.testing.assert_allclose(
            flat(ours.advantages), flat(batch.counted(theirs)), rtol=1e-5, atol=1e-5
        )
        weights = [0.5, -1.0, 2.0]
        weighed = record | {"gdpo_reward_weights": weights}
        ours = evaluate(weighed, "verl/vanilla", stages={"advantage": "verl/gdpo"})
        theirs = verl_functions.gdpo(batch, columns, weights)
        np.testing.assert_allclose(
            flat(ours.advantages), flat(batch.counted(theirs)), rtol=1e-5, atol=1e-5
        )
        alone = verl_functions.advantages(batch, "gdpo")
        compare_advantages(batch, "verl/gdpo", alone, limit=SINGLE)


def far(batch: Ragged) -> Ragged:
    """The batch with responses so far off that the bounds on the log ratio act: 10 and 20."""
    for index in range(0, batch.count, 2):
        batch.columns["log_probs_old"][index][:] -= 14.0
        batch.columns["log_probs_old"][index][::2] -= 8.0
    return batch


@pytest.mark.parametrize("mode", MODES)
def test_the_bound_of_gspo(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(3):
        compare(far(ragged(seed + 140)), "gspo", monkeypatch, mode=mode)


def test_certain_tokens_of_dppo_kl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the probability is nearly 1, verl's 1e-8 inside the logarithm decides."""
    for seed in range(6):
        batch = ragged(seed + 160)
        draw = np.random.default_rng(seed)
        for name in ("log_probs_new", "log_probs_old"):
            for row in batch.columns[name]:
                row[:] = -(10.0 ** draw.uniform(-10, -6, size=len(row)))
        bounds = {"clip_ratio_low": 1e-8, "clip_ratio_high": 1e-8}
        compare(batch, "dppo_kl", monkeypatch, **bounds)


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_without_a_token(mode: str) -> None:
    batch = ragged(3, "usual")
    for row in batch.mask:
        row[:] = 0
    theirs = verl_functions.compute(batch, "vanilla", mode=mode)
    assert theirs.loss == 0.0 if mode == "token-sum" else np.isnan(theirs.loss)
    more = {"response_length": 5} if mode.endswith("norm") else {}
    ours = evaluated(batch, "verl/vanilla", stages={"aggregate": f"verl/{mode}"}, **more)
    assert ours.loss == 0.0


def test_write_the_golden_numbers(writing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves verl's own numbers for the ordinary suite."""
    cases = [_golden_loss(index, loss, monkeypatch) for index, loss in enumerate(LOSSES)]
    shared = {"batch_num_tokens": 97, "global_batch_size": 24, "dp_size": 3}
    cases += [
        _golden_loss(index, "vanilla", monkeypatch, loss_scale_factor=50, **shared)
        for index in range(len(MODES))
    ]
    cases += [_golden_loss(index, "gspo", monkeypatch, far) for index in (1, 3)]
    cases += [
        _golden_loss(0, loss, monkeypatch, far, stages={})
        for loss in ("vanilla", *sorted(OWN_MODE))
    ]
    cases += [_golden_kl(index, kl) for index, kl in enumerate(KLS)]
    cases += [_golden_advantages(index, choice) for index, choice in enumerate(ESTIMATORS)]
    if writing:
        head = {
            "framework": "verl",
            "version": version("verl"),
            "torch": re.sub(r"\+.*", "", torch.__version__),
            "how": "tests/parity/test_verl.py: verl.trainer.ppo.core_algos in float64; the loss is "
            "policy loss + beta·KL − entropy_coeff·entropy; the gradient is autograd's",
        }
        write_golden("verl", head | {"cases": cases})


def _golden_batch(seed: int, kind: str = "usual") -> Ragged:
    batch = ragged(seed, kind)
    for row in batch.columns["log_probs_new"]:
        row[::3] = np.minimum(row[::3] + 0.6, -1e-6)
        row[1::4] -= 0.5
    return batch


def _rows(batch: Ragged, table: Any) -> list[list[float]]:
    return [row.tolist() for row in batch.counted(table)]


def _case(
    function: str,
    variant: str,
    stages: dict[str, str],
    record: dict[str, Any],
    batch: Ragged,
    theirs: Any,
    **more: Any,
) -> dict[str, Any]:
    """A case with what verl returned: losses, gradient, and whatever is named besides."""
    expected = {"loss": theirs.loss, "policy_loss": theirs.policy, **more}
    expected["gradient"] = _rows(batch, theirs.gradient)
    named = {"function": function, "variant": variant, "stages": stages}
    return named | {"record": record, "expected": expected}


def _golden_loss(
    index: int,
    loss: str,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Ragged], Ragged] = lambda batch: batch,
    stages: dict[str, str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    batch, mode = change(_golden_batch(index + 200)), MODES[index % len(MODES)]
    settings = LOSSES[loss] | more | ({"clip_cov_ratio": 1.0} if loss == "clip_cov" else {})
    record = batch.record(
        hyperparameters=settings
        | {"beta": 0.2, "entropy_coef": 0.01, "response_length": batch.width}
    )
    stages = stages_for(loss, mode) if stages is None else stages
    if loss == "clip_cov":  # every candidate is taken, so that the draw does not matter
        monkeypatch.setattr(torch, "randperm", torch.arange)
    theirs = verl_functions.compute(
        batch, loss, mode=mode, beta=0.2, entropy_coeff=0.01, **settings
    )
    assert np.count_nonzero(theirs.gradient)
    function = f"compute_policy_loss_{loss}, agg_loss ({mode}), kl_penalty (low_var_kl)"
    case = _case(function, f"verl/{loss}", stages, record, batch, theirs)
    case["expected"] |= {"kl": _rows(batch, theirs.kl), "metrics": theirs.metrics}
    return case


def _golden_kl(index: int, kl: str) -> dict[str, Any]:
    batch = _golden_batch(index + 300)
    for row in batch.columns["log_probs_ref"]:
        row[::5] -= 4.0
    theirs = verl_functions.compute(batch, "vanilla", kl=kl, beta=0.4)
    function = f"kl_penalty ({kl}), compute_policy_loss_vanilla, agg_loss (token-mean)"
    record = batch.record(hyperparameters={"beta": 0.4})
    case = _case(function, "verl/vanilla", {"kl": f"verl/{kl}"}, record, batch, theirs)
    case["expected"]["kl"] = _rows(batch, theirs.kl)
    return case


def _golden_advantages(index: int, choice: str) -> dict[str, Any]:
    estimator, norm = ESTIMATORS[choice]
    batch = _golden_batch(index + 400, "usual" if "passk" in choice else "singletons")
    batch.rewards[:] = np.round(np.random.default_rng(index).normal(size=batch.count), 3)
    batch.rewards[0] = 0.0
    found = verl_functions.advantages(batch, estimator, norm=norm)
    theirs = verl_functions.compute(batch, "vanilla", advantages=found)
    function = f"{estimator}, compute_policy_loss_vanilla, agg_loss (token-mean)"
    record = batch.record("log_probs_new", "log_probs_old", rewards=True)
    more = {"advantages": _rows(batch, found)}
    return _case(function, "verl/vanilla", {"advantage": choice}, record, batch, theirs, **more)
