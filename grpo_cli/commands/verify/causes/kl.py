"""The KL taken wrongly: its sign, its strength, its estimator, its weight, its gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.cause import (
    Cause,
    bound_to,
    catalogued,
    is_typed,
    other_value,
    roundest_near,
    swapped,
    tapped,
)
from grpo_cli.commands.verify.expected import Flags
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound, Choice, Composed, call, parameters
from grpo_cli.objective.results import Kl
from grpo_cli.objective.terms import KL, POLICY
from grpo_cli.terminal.numbers import is_round
from grpo_cli.variants import STAGES


def penalties(case: Case) -> Iterator[Cause]:
    """Yields every mistake about a KL that is there."""
    own = case.objective.kl
    if own.choice.in_reward:
        for key, change in (("kl-dropped.reward", np.zeros_like), ("kl-sign.reward", np.negative)):
            other = tapped(own, change)
            other = replace(other, choice=replace(other.choice, in_reward=True))
            yield catalogued(key, partial(Case.evaluated, kl=other))
    if own.choice.absent or not case.objective.beta:
        return
    yield dropped(own)
    opposite = partial(Case.with_coefficient, name=KL, factor=-1.0)
    yield catalogued("kl-sign", opposite, by_record=True)
    yield catalogued("kl-detached", _detached)
    yield catalogued("kl-where-kept", _where_kept)
    if own.name.endswith("k3"):
        words = "KL estimator k3 without its −1: each token's KL is larger by 1"
        more = tapped(own, lambda kl: kl._replace(value=kl.value + 1.0))
        yield swapped("kl-estimator", "kl", words, more)
    if own.values.get("kl_weight") == "ratio":
        only_weight = tapped(own, lambda kl: kl._replace(grad_log_prob=np.zeros_like(kl.value)))
        made = partial(Case.evaluated, kl=only_weight)
        yield catalogued("kl-detached.weighted", made, adds_to="kl-detached")
    if case.batch.log_probs_ref is not None:
        yield catalogued("kl-reversed", _reversed)
        yield catalogued("kl-of-old", partial(_to, column="log_probs_old"))
        if case.batch.log_probs_rollout is not None:
            yield catalogued("kl-of-old.engine", partial(_to, column="log_probs_rollout"))
        if case.batch.log_probs_old is not None:
            yield catalogued("kl-from-old", _from_old)
    yield from weights(case)
    if case.batch.log_probs_ref is not None and "log_ratio_ref" in own.choice.columns:
        for called, estimate in _ESTIMATES.items():
            words = f"KL estimator {called} instead of {own.name}, d = log π_θ − log π_ref"
            yield swapped("kl-estimator", "kl", words, _estimated(own, estimate))
    yield from estimators(own, STAGES["kl"].choices)
    if (square := bound_to("k2", STAGES["kl"].choices["k2"], own.values)) and own.name != "k2":
        twice = tapped(square, partial(_multiplied, by=2.0))
        words = f"KL estimator d² (k2 without the factor 1/2) instead of {own.name}"
        yield swapped("kl-square", "kl", words, twice)


def usual(case: Case) -> Iterator[Cause]:
    """Yields what losses often have instead of a KL that is there, whatever else is wrong."""
    own = case.objective.kl
    if not (own.choice.in_reward or own.choice.absent) and case.objective.beta:
        yield dropped(own)
        yield from weights(case)
        yield from estimators(own, ("k1", "k2", "k3"))


def estimators(own: Bound, names: Iterable[str]) -> Iterator[Cause]:
    """Yields the KL by other estimators."""
    for name in names:
        choice = STAGES["kl"].choices[name]
        if name == own.name or choice.absent or choice.in_reward:
            continue
        if (bound := bound_to(name, choice, own.values)) is not None:
            mistake = "kl-gradient" if name.endswith("+") else "kl-estimator"
            plain = STAGES["kl"].aliases.get(name.partition("/")[2], "")  # differs by a clamp
            words, *simpler = (
                f"KL estimator {with_alias(one)} instead of {own.name}"
                for one in (name, plain)
                if one
            )
            yield swapped(mistake, "kl", words, bound)._replace(adds_to=(*simpler,))


def with_alias(name: str) -> str:
    """A KL estimator with verl's name for it, where that is another."""
    also = [alias for alias, of in STAGES["kl"].aliases.items() if of == name and "/" not in alias]
    return f"{name} (verl's {also[0]})" if also else name


def dropped(own: Bound) -> Cause:
    """The objective without its KL."""
    none = Bound(own.name, own.choice, {**own.values, "beta": 0.0})
    return catalogued("kl-dropped", partial(Case.evaluated, kl=none), by_record=True)


def negated(own: Bound) -> Bound:
    """The KL times −1."""
    return tapped(own, partial(_multiplied, by=-1.0))


Estimate = Callable[[F64, F64], tuple[F64, F64]]
"""d = log π_θ − log π_ref and log π_θ → k and ∂k/∂log π_θ."""


_ESTIMATES: Mapping[str, Estimate] = {
    "max(d, 0)": lambda d, _: (np.maximum(d, 0.0), np.where(d > 0.0, 1.0, 0.0)),
    "π_θ·d": lambda d, new: (np.exp(new) * d, np.exp(new) * (d + 1.0)),
    "exp(−d) − 1 (k3 without + d)": lambda d, _: (np.expm1(-d), -np.exp(-d)),
}
"""What is no row's."""


def _estimated(own: Bound, estimate: Estimate) -> Bound:
    columns = ("log_ratio_ref", "log_probs_new")

    def penalty(given: Mapping[str, Any], _: Mapping[str, Any]) -> Kl:
        return Kl(*estimate(*(given[name] for name in columns)), None)

    takes = parameters(own.choice.function)._replace(columns=columns)
    return Bound(own.name, Choice(Composed(takes, penalty, "")), own.values)


def _detached(case: Case) -> Breakdown:
    return case.with_terms(lambda term: term._replace(slope=None), KL)


def _to(case: Case, column: str) -> Breakdown:
    return case.with_columns(log_probs_ref=case.column(column))


def _where_kept(case: Case) -> Breakdown:
    kept = np.where(case.breakdown.clip == 0, 1.0, 0.0)
    return case.with_terms(lambda term: case.counted(term, kept), KL)


_OF_TRL = " (as TRL before 1.10, or with use_bias_correction_kl off)"


def weights(case: Case) -> Iterator[Cause]:
    """Yields the KL weighted by the ratio or not, and with its weight detached."""
    own, words = case.objective.kl, "KL's weight detached: no gradient flows through the ratio"
    if own.values.get("kl_weight") == "ratio":
        plain = Bound(own.name, own.choice, {**own.values, "kl_weight": "none"})
        cause = catalogued("kl-weight.plain", partial(Case.evaluated, kl=plain))
        of_trl = case.objective.name.startswith("trl/")
        yield cause._replace(words=cause.words + _OF_TRL) if of_trl else cause
        weighted = own
    else:
        weighted = _weighted(own)
        if own.values.get("kl_weight") == "none":
            weighted = Bound(own.name, own.choice, {**own.values, "kl_weight": "ratio"})
        yield catalogued("kl-weight.ratio", partial(Case.evaluated, kl=weighted))
        words = f"KL weighted by the ratio, and {words}"
    detached = tapped(weighted, lambda kl: kl._replace(grad_log_ratio=None))
    yield swapped("kl-weight-gradient", "kl", words, detached)


def _weighted(own: Bound) -> Bound:
    """Multiplies an estimate that has no weight of its own by the ratio."""
    takes = parameters(own.choice.function)
    more = () if "ratio" in takes.columns else ("ratio",)

    def weighted(columns: Mapping[str, Any], values: Mapping[str, Any]) -> Kl:
        plain: Kl = call(own.choice.function, columns, values)
        value = columns["ratio"] * plain.value
        return Kl(value, columns["ratio"] * plain.grad_log_prob, value)

    function = Composed(takes._replace(columns=(*takes.columns, *more)), weighted, "")
    return Bound(own.name, Choice(function), own.values)


def _multiplied(kl: Kl, by: float | Flags) -> Kl:
    weight = None if kl.grad_log_ratio is None else by * kl.grad_log_ratio
    return Kl(by * kl.value, by * kl.grad_log_prob, weight)


def _reversed(case: Case) -> Breakdown:
    new, ref = case.column("log_probs_new"), case.column("log_probs_ref")
    turned = tapped(case.objective.kl, lambda kl: kl._replace(grad_log_prob=-kl.grad_log_prob))
    return case.evaluated(replace(case.batch, log_probs_ref=new - ref + new), kl=turned)


def _from_old(case: Case) -> Breakdown:
    new, old = case.column("log_probs_new"), case.column("log_probs_old")
    still = tapped(case.objective.kl, lambda kl: kl._replace(grad_log_prob=0.0 * kl.value))
    reference = case.column("log_probs_ref") + (new - old)
    return case.evaluated(replace(case.batch, log_probs_ref=reference), kl=still)


# ---- solved -------------------------------------------------------------------------------------


def strength(case: Case, *, unround: bool = False) -> Iterator[Cause]:
    """Yields the β that gives the gradient of most tokens, if somebody may type it."""
    own, ours, wanted = case.objective.kl, case.without_policy.gradient, case.gradient
    if wanted is not None and not case.objective.beta:
        yield from _unused(case, wanted, unround=unround)
    if wanted is None or not case.objective.beta or not ours.any():
        return
    factor = _factor(wanted - case.policy_gradient, ours, case.quiet)
    beta = roundest_near(factor * case.objective.beta)
    if beta > 0.0 and abs(factor - 1.0) > 1e-4 and unround != is_round(beta):
        words = other_value("beta", beta, case.objective.beta, own.values, called="β is")
        solved = Bound(own.name, own.choice, {**own.values, "beta": beta})
        yield swapped("kl-beta", "kl", words, solved)._replace(equal=not is_typed(beta, digits=3))


def _factor(wanted: F64, ours: F64, quiet: float) -> float:
    """What most tokens have of ours, if they agree; another mistake may have moved the others."""
    loud = np.abs(ours) > quiet
    ratios = wanted / np.where(loud, ours, np.inf)
    median = float(np.median(ratios[loud])) if loud.any() else 0.0
    alike = loud & (np.abs(ratios - median) <= 0.01 * abs(median))
    some = alike if 2 * alike.sum() > loud.sum() else np.ones_like(loud)
    return float(ours[some] @ wanted[some]) / float(ours[some] @ ours[some])


def _unused(case: Case, wanted: F64, *, unround: bool) -> Iterator[Cause]:
    """Yields the β, and the estimator, of a KL that the objective does not have."""
    ours = case.breakdown.gradient
    for own in unused(case):
        unit = case.evaluated(kl=own).gradient - ours
        if unit.any():
            beta = roundest_near(float((wanted - ours) @ unit) / float(unit @ unit))
            if beta > 0.0 and unround != is_round(beta):
                yield added(own, beta)._replace(equal=not is_typed(beta))


def unused(case: Case) -> Iterator[Bound]:
    """Yields each KL, with β = 1, to a reference that the record has and the objective does not."""
    names = STAGES["kl"].choices if case.has_unused_reference else {}
    for name in sorted(names, key=lambda name: name != "k3"):  # which most losses have
        choice = names[name]
        if "/" in name or "log_ratio_ref" not in choice.columns:
            continue
        for weight in ("none", "ratio") if "kl_weight" in choice.hyperparameters else ("none",):
            if bound := bound_to(name, choice, {"beta": 1.0, "kl_weight": weight}):
                yield bound


def added(own: Bound, beta: float) -> Cause:
    """A KL with some β, where the objective has none."""
    of = f"{own.name}, weighted by the ratio" * (own.values.get("kl_weight") == "ratio")
    words = f"β is {beta:.4g} instead of 0: your loss has a KL ({of or own.name})"
    return swapped("kl-beta", "kl", words, replace(own, values={**own.values, "beta": beta}))


def policy_strength(case: Case) -> Iterator[Cause]:
    """Yields the factor that only the policy term has, which is one of the advantages."""
    wanted, ours = case.expected_policy_gradient, case.policy_gradient
    if wanted is None or not case.objective.beta or not ours.any():
        return
    factor = float(wanted @ ours) / float(ours @ ours)
    near = roundest_near(factor)
    if abs(factor - 1.0) > 1e-4:
        words = f"advantages times {near:.5g}: the policy term is scaled, the KL is not"
        if abs(factor + 1.0) <= 1e-4:
            words = "wrong sign of the policy term (advantages times -1); the KL is right"
        made = partial(Case.scaled, loss=near, gradient=near, only=POLICY)
        yield Cause("advantage-scaled", words, made, equal=not is_typed(near))
