"""verl 0.9.1's policy losses, executed in float64 beside the rows of frameworks/verl."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
from frameworks.verl_metrics import metrics

from grpo_cli import evaluate

from . import verl_functions
from .agreement import AGREEMENT, golden
from .batches import KINDS, Ragged, evaluated, flat, given, ragged
from .verl_functions import FRAMEWORK, TABLE

LOSSES, VARIED, MODES = TABLE["losses"], TABLE["varied"], TABLE["modes"]
OWN_MODE = {"sapo", "geo_mean"}
"""The losses that do not follow loss_agg_mode."""


def test_the_version_is_the_one_that_the_rows_name() -> None:
    assert f"verl {version('verl')}" == FRAMEWORK


def stages_for(loss: str, mode: str, **more: str) -> dict[str, str]:
    names = ("kl_aggregate", "entropy_aggregate") if loss in OWN_MODE else ("aggregate",)
    return dict.fromkeys(names, f"verl/{mode}") | more


def compare(
    batch: Ragged,
    loss: str,
    *,
    mode: str = "token-mean",
    kl: str = "low_var_kl",
    beta: float = 0.0,
    entropy_coeff: float = 0.0,
    label: str = "",
    stages: dict[str, str] | None = None,
    **settings: Any,
) -> None:
    """Loss, gradient, KL and metrics of a row against verl's function.

    The settings go into the record, where those that a row does not take are ignored.
    """
    if loss == "clip_cov":  # so that the tokens taken out can be told from those left alone
        batch.advantages[batch.advantages == 0.0] = 0.01
    name, case = label or f"verl/{loss}", f"{batch.kind} {batch.seed} {mode} {kl} {settings}"
    settings = LOSSES[loss] | settings
    said: dict[str, Any] = {"beta": beta, "entropy_coef": entropy_coeff} | settings
    if mode == "seq-mean-token-sum-norm":
        said["response_length"] = batch.width
    said = {name: value for name, value in said.items() if value is not None}
    stages = stages_for(loss, mode, kl=f"verl/{kl}") if stages is None else stages
    ours = evaluate(batch.record(hyperparameters=said), f"verl/{loss}", stages=stages)
    how = {"mode": mode, "kl": kl, "beta": beta, "entropy_coeff": entropy_coeff}
    with verl_functions.drawing(_drawn(ours)) if loss == "clip_cov" else nullcontext():
        theirs = verl_functions.compute(batch, loss, **how, **settings)

    def close(quantity: str, left: Any, right: Any, limit: float = 1e-9) -> None:
        AGREEMENT.close(FRAMEWORK, name, quantity, left, right, limit=limit, case=case)

    close("policy loss", -ours.total["policy"], theirs.policy)
    close("loss", ours.loss, theirs.loss)
    # verl's σ·(1 − σ) cancels where the gate is nearly open, ours does not
    near = 1e-7 if loss == "sapo" else 1e-9
    close("gradient", -flat(ours.gradient), flat(batch.counted(theirs.gradient)), near)
    if beta:  # verl's e^x − x − 1 cancels near 0, ours does not
        close("kl", ours.breakdown.kl, flat(batch.counted(theirs.kl)), 1e-8)
    found = metrics(ours.breakdown, loss)
    assert set(found) == set(theirs.metrics)
    for key, value in theirs.metrics.items():
        scale = max(abs(value), 1e-3)
        close(key.removeprefix("actor/"), found[key] / scale, value / scale)


def _drawn(ours: Any) -> list[int]:
    """The places, among those that clip_cov may draw, of the tokens that we drew."""
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
    return np.searchsorted(candidates, taken).tolist()


def telling(batch: Ragged, loss: str) -> bool:
    """Whether the covariances tell the tokens apart; where A is the same for all they are noise."""
    weight = [row.sum() for row in batch.mask]
    return not loss.endswith("cov") or len(np.unique(batch.advantages[np.array(weight) > 0])) > 1


Asked = Iterator[tuple[Ragged, dict[str, Any]]]
"""Batches, and what verl is asked of each."""
SHARED = {"batch_num_tokens": 321, "global_batch_size": 48, "dp_size": 4}
"""Denominators of the whole mini-batch."""


def asked(loss: str) -> Asked:
    for kind in KINDS:
        yield ragged(180, kind), {"beta": 0.3, "entropy_coeff": 0.02, "stages": {}}
    for at, mode in enumerate(MODES):
        for kind in KINDS:
            yield ragged(at, kind), {"mode": mode, "beta": 0.1 * (at % 3)}
        other = {"beta": 0.05, "entropy_coeff": 0.03, **VARIED.get(loss, {})}
        yield ragged(at + 20, KINDS[at]), {"mode": mode, **other}
    if loss in ("vanilla", *OWN_MODE):
        yield from of_a_mini_batch()
    if loss == "gspo":
        for mode in MODES:
            yield from ((off(ragged(seed + 140)), {"mode": mode}) for seed in range(3))
    if loss == "dppo_kl":
        bounds = {"clip_ratio_low": 1e-8, "clip_ratio_high": 1e-8}
        yield from ((certain(seed), bounds) for seed in range(6))


def of_a_mini_batch() -> Asked:
    for mode in MODES:
        for seed, kind in enumerate(("usual", "hollow")):
            for factor in (None, 128):
                how = {"mode": mode, "beta": 0.1, **SHARED, "loss_scale_factor": factor}
                yield ragged(seed + 40, kind), how


def off(batch: Ragged) -> Ragged:
    """The batch with responses so far off that the bounds on the log ratio act: 10 and 20."""
    for index in range(0, batch.count, 2):
        batch.columns["log_probs_old"][index][:] -= 14.0
        batch.columns["log_probs_old"][index][::2] -= 8.0
    return batch


def certain(seed: int) -> Ragged:
    """Tokens of a probability of nearly 1, where verl's 1e-8 inside the logarithm decides."""
    batch, draw = ragged(seed + 160), np.random.default_rng(seed)
    for name in ("log_probs_new", "log_probs_old"):
        for row in batch.columns[name]:
            row[:] = -(10.0 ** draw.uniform(-10, -6, size=len(row)))
    return batch


@pytest.mark.parametrize("loss", LOSSES)
def test_policy_losses(loss: str) -> None:
    for batch, how in asked(loss):
        if telling(batch, loss):
            compare(batch, loss, **how)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kl", TABLE["kls"])
def test_kl_penalties(kl: str, kind: str) -> None:
    for seed in range(2):
        batch = ragged(seed + 60, kind)
        for index, row in enumerate(batch.columns["log_probs_ref"]):
            if index % 2:  # far enough for both clamps of low_var_kl
                row += np.random.default_rng(seed).normal(size=len(row)) * 12.0
                np.minimum(row, -1e-6, out=row)
        compare(batch, "vanilla", mode=MODES[seed], kl=kl, beta=0.3, label=f"verl/{kl} KL")


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


def executed(case: dict[str, Any]) -> dict[str, Any]:
    """What verl makes of a golden case; of clip_cov every candidate is taken, so none is drawn."""
    record, stages, batch = case["record"], case["stages"], given(case["record"])
    settings = dict(record.get("hyperparameters", {}))
    settings.pop("response_length", None)
    how = {"entropy_coeff": settings.pop("entropy_coef", 0.0), **settings}
    mode = stages.get("aggregate") or stages.get("kl_aggregate") or "verl/token-mean"
    how["kl"] = stages.get("kl", "verl/low_var_kl").removeprefix("verl/")
    if "advantage" in stages:
        how["advantages"] = verl_functions.advantages(batch, stages["advantage"])
    loss = case["variant"].removeprefix("verl/")
    theirs = verl_functions.compute(batch, loss, mode=mode.removeprefix("verl/"), **how)
    tables = {"gradient": theirs.gradient, "kl": theirs.kl, "advantages": how.get("advantages")}
    found = {"loss": theirs.loss, "policy_loss": theirs.policy, "metrics": theirs.metrics}
    found |= {name: batch.counted(table) for name, table in tables.items() if table is not None}
    return {"expected": {name: found[name] for name in case["expected"]}}


def test_golden(writing: bool) -> None:
    golden("verl", executed, writing=writing, version=version("verl"))
