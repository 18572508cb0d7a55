"""The KL taken wrongly: its sign, its strength, its estimator, its weight, its gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np

from grpo_cli.commands.verify.causes.case import (
    IMPOSSIBLE,
    Case,
    Cause,
    bound_to,
    round_number,
    swapped,
    tapped,
)
from grpo_cli.commands.verify.causes.denominators import denominators
from grpo_cli.commands.verify.causes.solving import bounding, roundest
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound, Choice, Composed, call, parameters
from grpo_cli.objective.inputs import Inputs
from grpo_cli.objective.results import Kl
from grpo_cli.objective.terms import KL, POLICY, Term
from grpo_cli.variants import STAGES


def penalties(case: Case) -> Iterator[Cause]:
    """Yields every mistake about a KL that is there."""
    own = case.objective.kl
    if own.choice.absent or not case.objective.beta:
        return
    yield Cause("kl-dropped", "KL missing (β = 0)", partial(_times, factor=0.0))
    yield Cause(
        "kl-sign",
        "β with the wrong sign (−β): the KL is added to the objective",
        partial(_times, factor=-1.0),
    )
    yield Cause(
        "kl-detached",
        "KL without gradient (detached)",
        lambda case: _on_kl(case, lambda kl: kl._replace(slope=None)),
    )
    if own.values.get("kl_weight") == "ratio":
        words = "KL without gradient (detached), except through its weight"
        only_weight = tapped(own, lambda kl: kl._replace(grad_log_prob=np.zeros_like(kl.value)))
        yield swapped("kl-detached", "kl", words, only_weight)
    if case.batch.log_probs_ref is not None:
        words = "KL direction reversed: log π_ref − log π_θ instead of log π_θ − log π_ref"
        turned = tapped(own, partial(_moving, by=-1))
        made = partial(_of_policies, of="log_probs_ref", to="log_probs_new", kl=turned)
        yield Cause("kl-reversed", words, made)
        yield Cause(
            "kl-of-old",
            "KL to the old policy instead of the reference",
            lambda case: case.with_columns(log_probs_ref=case.batch.log_probs_old),
        )
    yield from _weights(own)
    for name, choice in STAGES["kl"].choices.items():
        if name == own.name or choice.absent or choice.in_reward:
            continue
        bound = bound_to(name, choice, own.values)
        if bound is not None:
            mistake = "kl-gradient" if name.endswith("+") else "kl-estimator"
            words = f"KL estimator {name} instead of {own.name}"
            yield swapped(mistake, "kl", words, bound)
            if name == "k2":
                twice = tapped(bound, _doubled)
                words = f"KL estimator d² (k2 without the factor 1/2) instead of {own.name}"
                yield swapped("kl-square", "kl", words, twice)


def _doubled(kl: Kl) -> Kl:
    weight = None if kl.grad_log_ratio is None else 2.0 * kl.grad_log_ratio
    return Kl(2.0 * kl.value, 2.0 * kl.grad_log_prob, weight)


def _on_kl(case: Case, change: Callable[[Term], Term]) -> Breakdown:
    return case.with_terms(lambda term: change(term) if term.name == KL else term)


def _times(case: Case, factor: float) -> Breakdown:
    return _on_kl(case, lambda kl: kl._replace(coefficient=factor * kl.coefficient))


def _weights(own: Bound) -> Iterator[Cause]:
    if own.values.get("kl_weight") == "ratio":
        plain = Bound(own.name, own.choice, {**own.values, "kl_weight": "none"})
        yield swapped("kl-weight", "kl", "KL not weighted by the ratio", plain)
        detached = tapped(own, lambda kl: kl._replace(grad_log_ratio=None))
        more = ""
    elif own.values.get("kl_weight") == "none":
        weighted = Bound(own.name, own.choice, {**own.values, "kl_weight": "ratio"})
        yield swapped("kl-weight", "kl", "KL weighted by the ratio", weighted)
        detached = tapped(weighted, lambda kl: kl._replace(grad_log_ratio=None))
        more = "KL weighted by the ratio, and "
    else:
        yield swapped("kl-weight", "kl", "KL weighted by the ratio", _weighted(own, moving=True))
        detached, more = _weighted(own, moving=False), "KL weighted by the ratio, and "
    words = f"{more}KL's weight detached: no gradient flows through the ratio"
    yield swapped("kl-weight-gradient", "kl", words, detached)


def _weighted(own: Bound, *, moving: bool) -> Bound:
    """Multiplies an estimate that has no weight of its own by the ratio."""
    takes = parameters(own.choice.function)
    more = () if "ratio" in takes.columns else ("ratio",)

    def weighted(columns: Mapping[str, Any], values: Mapping[str, Any]) -> Kl:
        plain: Kl = call(own.choice.function, columns, values)
        value = columns["ratio"] * plain.value
        return Kl(value, columns["ratio"] * plain.grad_log_prob, value if moving else None)

    function = Composed(takes._replace(columns=(*takes.columns, *more)), weighted, "")
    return Bound(own.name, Choice(function), own.values)


_POLICIES = {
    "π_θ": "log_probs_new",
    "π_old": "log_probs_old",
    "π_ref": "log_probs_ref",
    "the engine": "log_probs_rollout",
}


def estimates(case: Case) -> Iterator[Cause]:
    """Yields every estimator of the KL between every two policies, with every weight.

    Those alone whose slope is the one that the gradients have.
    """
    own, wanted, batch = case.objective.kl, case.gradient, case.batch
    term = case.breakdown.term(KL)
    if wanted is None or term is None or term.slope is None or not case.objective.beta:
        return
    if batch.log_probs_new is None or case.objective.ratio.choice.per_response:
        return
    scale = term.coefficient * case.breakdown.term_weight(term)[batch.responses.index]
    seen = (wanted - case.policy_gradient) / np.where(scale == 0.0, np.nan, scale)
    room = 1e-3 * float(np.nanmax(np.abs(seen), initial=0.0))
    bounds = {own.name: own} | {
        name: bound
        for name, choice in STAGES["kl"].choices.items()
        if "/" not in name and not (choice.absent or choice.in_reward)
        if "log_probs_rollout" not in choice.columns or batch.log_probs_rollout is not None
        if (bound := bound_to(name, choice, own.values)) is not None
    }
    for (above, of), (below, to) in permutations(_POLICIES.items(), 2):
        of_column, to_column = getattr(batch, of), getattr(batch, to)
        if of_column is None or to_column is None:
            continue
        moving = (of == "log_probs_new") - (to == "log_probs_new")
        inputs = Inputs(replace(batch, log_probs_ref=batch.log_probs_new - of_column + to_column))
        inputs["ratio"], inputs["log_ratio"] = case.breakdown.ratio, case.breakdown.log_ratio
        for name, bound in bounds.items():
            for weight in ("none", "ratio") if "kl_weight" in bound.values else ("",):
                values = {**bound.values} | ({"kl_weight": weight} if weight else {})
                turned = tapped(Bound(name, bound.choice, values), partial(_moving, by=moving))
                found: Kl = inputs.call(turned, "kl")
                by_ratio = 0.0 if found.grad_log_ratio is None else found.grad_log_ratio
                if not (np.abs(found.grad_log_prob + by_ratio - seen) <= room).all():
                    continue
                words = f"KL by {name} of log {above} − log {below}"
                words += ", weighted by the ratio" if weight == "ratio" else ""
                made = partial(_of_policies, of=of, to=to, kl=turned)
                yield Cause("kl-policies", words, made)


def _moving(kl: Kl, by: int) -> Kl:
    return kl._replace(grad_log_prob=by * kl.grad_log_prob)


def _of_policies(case: Case, of: str, to: str, kl: Bound) -> Breakdown:
    new, above, below = (getattr(case.batch, name) for name in ("log_probs_new", of, to))
    return case.evaluated(replace(case.batch, log_probs_ref=new - above + below), kl=kl)


def reductions(case: Case) -> Iterator[Cause]:
    """Yields the KL with another denominator, if it differs by more than a factor (that is β)."""
    own = case.objective.aggregate
    if not case.objective.beta or not case.other_kl_weights:
        return
    values = {**case.record.hyperparameters, **own.values}
    for name, choice in STAGES["aggregate"].choices.items():
        bound = bound_to(name, choice, values)
        if name != own.name and bound is not None:
            words = f"KL aggregated separately as {name}, instead of {own.name}"
            yield Cause("kl-aggregate", words, partial(_reduced, bound=bound))


def _reduced(case: Case, bound: Bound) -> Breakdown:
    again = case.evaluated(kl_aggregate=bound)
    term = again.term(KL)
    if term is None:
        return again
    factor = (again.term_weight(term) / case.breakdown.weight)[case.batch.responses.lengths > 0]
    same = np.ptp(factor) <= 1e-6 * factor.max()
    if same and round_number(factor[0] * case.objective.beta):
        raise ValueError("it differs by a factor, which may come from another β")
    return again


# ---- two at once --------------------------------------------------------------------------------


def weights_and_denominators(case: Case) -> Iterator[Cause]:
    """Yields another weight of the KL, which trainers can turn on and off, and a denominator."""
    if not case.objective.beta:
        return
    for weight in _weights(case.objective.kl):
        try:
            again = replace(case, breakdown=weight.evaluate(case))
        except IMPOSSIBLE:
            continue
        for cause in denominators(again, unnamed=False):
            words = f"{weight.words}, and {cause.words}"
            yield Cause(cause.mistake, words, partial(_both, first=weight, second=cause))


def _both(case: Case, first: Cause, second: Cause) -> Breakdown:
    return second.evaluate(replace(case, breakdown=first.evaluate(case)))


# ---- solved -------------------------------------------------------------------------------------


def strength(case: Case) -> Iterator[Cause]:
    """Yields the β that gives the gradient, which is linear in it, where somebody may type it."""
    yield from _strength(case, unround=False)


def any_strength(case: Case) -> Iterator[Cause]:
    """Yields the β that gives the gradient, whatever it is."""
    yield from _strength(case, unround=True)


def _strength(case: Case, *, unround: bool) -> Iterator[Cause]:
    beta, ours = case.objective.beta, case.without_policy.gradient
    wanted = case.gradient
    if wanted is None or not beta or case.breakdown.term(KL) is None or not ours.any():
        return
    factor = float((wanted - case.policy_gradient) @ ours) / float(ours @ ours)
    if abs(factor - 1.0) > 1e-4 and unround != round_number(factor * beta):
        near = roundest(*sorted((factor * beta * (1.0 - 1e-5), factor * beta * (1.0 + 1e-5))))
        words = f"β is {near:.4g} instead of {beta:g}"
        yield Cause("kl-beta", words, partial(_times, factor=factor))


def policy_strength(case: Case) -> Iterator[Cause]:
    """Yields the factor that only the policy term has, which is one of the advantages."""
    wanted, ours = case.expected_policy_gradient, case.policy_gradient
    if wanted is None or not case.objective.beta or not ours.any():
        return
    factor = float(wanted @ ours) / float(ours @ ours)
    near = roundest(*sorted((factor * (1.0 - 1e-5), factor * (1.0 + 1e-5))))
    if abs(factor - 1.0) > 1e-4:
        words = f"advantages times {near:.5g}: the policy term is scaled, the KL is not"
        if abs(factor + 1.0) <= 1e-4:
            words = "wrong sign of the policy term (advantages times -1); the KL is right"
        yield Cause("advantage-scaled", words, partial(_policy_times, factor=near))


def _policy_times(case: Case, factor: float) -> Breakdown:
    def scaled(term: Term) -> Term:
        if term.name != POLICY:
            return term
        slope = None if term.slope is None else factor * term.slope
        return term._replace(values=factor * term.values, sums=factor * term.sums, slope=slope)

    return case.with_terms(scaled)


def clamped(case: Case) -> Iterator[Cause]:
    """Yields the estimate with an upper bound, solved for from the tokens without its gradient."""
    if case.gradient is None or not case.objective.beta or case.breakdown.kl is None:
        return
    wanted, ours = case.gradient - case.policy_gradient, case.without_policy.gradient
    quiet = 1e-4 * float(np.abs(ours).max(initial=0.0))
    alive = np.abs(wanted) > quiet
    dead = ~alive & (np.abs(ours) > 3.0 * quiet)
    words = "KL bounded at {}: larger values have no gradient"
    yield from bounding(case, "kl-clamp", words, _clamped, case.breakdown.kl, dead, alive)


def _clamped(case: Case, number: float) -> Breakdown:
    def bounded(kl: Kl) -> Kl:
        inside = kl.value <= number
        weight = None if kl.grad_log_ratio is None else np.where(inside, kl.grad_log_ratio, 0.0)
        value = np.minimum(kl.value, number)
        return Kl(value, np.where(inside, kl.grad_log_prob, 0.0), weight)

    return case.evaluated(None, kl=tapped(case.objective.kl, bounded))
