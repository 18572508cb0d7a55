"""Another ratio, another correction, or any other choice of the tables at a stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import permutations, product

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.commands.solving import roundest
from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.cause import (
    Cause,
    bound_to,
    catalogued,
    swapped,
    tapped,
)
from grpo_cli.commands.verify.causes.denominators import lengths
from grpo_cli.commands.verify.compare import FLOAT32_LOSS
from grpo_cli.hyperparameters import HYPERPARAMETERS
from grpo_cli.mistakes import worded
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound, Choice
from grpo_cli.objective.results import Correction, Ratio
from grpo_cli.objective.terms import ENTROPY
from grpo_cli.variants import STAGES, bind

# ---- ratios -------------------------------------------------------------------------------------


def ratios(case: Case) -> Iterator[Cause]:
    """Yields the ratio inverted, to another policy, or held constant."""
    batch, own = case.batch, case.objective.ratio
    stages = case.objective.stages.values()
    if not any({"ratio", "log_ratio"} & {*bound.choice.columns} for bound in stages):
        return
    if batch.ratios is None:
        for column, key in _INSTEAD.items():
            if getattr(batch, column) is not None:
                cause = catalogued(key, partial(_to, column=column))
                yield cause
                if own.name != "token":
                    by_token = partial(_to, column=column, ratio=_TOKEN)
                    words = f"{cause.words}{_BY_TOKEN}"
                    yield cause._replace(words=words, evaluate=by_token, adds_to=(cause.words,))
    for key, change in _CHANGES.items():
        made = tapped(own, change)
        yield catalogued(key, partial(Case.evaluated, ratio=made), of="ratio")
    if case.gradient is not None:
        yield catalogued("ratio-one-gradient.slope", _with_slope_at_1)
        yield from _clamps(case)
    if batch.log_probs_new is not None and batch.log_probs_old is not None:
        yield from _levels(case)


_INSTEAD = {
    "log_probs_new": "old-ignored",
    "log_probs_ref": "ratio-policy.reference",
    "log_probs_rollout": "ratio-policy.engine",
}

_BY_TOKEN = ", token by token"
_OTHER_POLICY = {
    "on-policy": "old-ignored",
    "rollout": "ratio-policy.engine",
    "rollout-sequence": "ratio-policy.engine",
    "rollout-sequence-token": "ratio-policy.engine",
}
"""Ratio → the mistake that it is where no other stage reads the log-probs."""


_TOKEN = bind("ratio", "token")


def _to(case: Case, column: str, **stages: Bound) -> Breakdown:
    return case.evaluated(replace(case.batch, log_probs_old=case.column(column)), **stages)


_CHANGES: Mapping[str, Callable[[Ratio], Ratio]] = {
    "ratio-inverted": lambda r: Ratio(
        -r.log_ratio, np.exp(-r.log_ratio), lambda slope: r.pull(-slope)
    ),
    "ratio-one-gradient": lambda r: Ratio(
        np.zeros_like(r.log_ratio), np.ones_like(r.ratio), np.zeros_like
    ),
    "ratio-detached": lambda r: r._replace(pull=np.zeros_like),
}


def _with_slope_at_1(case: Case) -> Breakdown:
    """The record with the slope that its terms have where every ratio is 1."""
    at_1 = _to(case, "log_probs_new").terms
    slopes = {term.name: term.slope for term in at_1}
    return case.with_terms(lambda term: term._replace(slope=slopes[term.name]))


def _clamps(case: Case) -> Iterator[Cause]:
    """Yields the roundest bound on the log-ratio above which tokens have no policy gradient."""
    wanted, b, own = case.expected_policy_gradient, case.breakdown, case.objective.ratio
    if wanted is None or own.choice.per_response:
        return
    size, alive = np.abs(b.log_ratio), np.abs(wanted) > case.quiet
    loud = np.abs(case.policy_gradient) > 3.0 * case.quiet
    low = float(size[loud & alive].max(initial=0.0))
    high = float(size[loud & ~alive].min(initial=np.inf))
    bound = roundest(low, high) if low < high < np.inf else 0.0
    if bound > 0.0:  # which no gradient at all would give as well
        made = tapped(own, partial(_clamped, bound=bound))
        words = f"log-ratio clamped at ±{bound:g} before the exponential"
        yield swapped("ratio-clamped", "ratio", words, made)


def _clamped(r: Ratio, bound: float) -> Ratio:
    log_ratio = np.clip(r.log_ratio, -bound, bound)
    inside = log_ratio == r.log_ratio
    return Ratio(log_ratio, np.exp(log_ratio), lambda slope: r.pull(np.where(inside, slope, 0.0)))


def _width(case: Case) -> float:
    return float(max(case.record.widths, default=1))


def _levels(case: Case) -> Iterator[Cause]:
    """Yields log-ratios of a sequence with another divisor, and its gradient without 1/L."""
    if case.objective.ratio.choice.per_response:
        yield catalogued("ratio-width", partial(_over, divisor=_width))
        yield catalogued("ratio-slope", _steep)
    for key, divisor in (("ratio-not-summed.length", lengths), ("ratio-not-summed.width", _width)):
        yield catalogued(key, partial(_over, divisor=divisor, each=True))


def _over(case: Case, divisor: Callable[[Case], F64 | float], *, each: bool = False) -> Breakdown:
    """The ratio of log-ratios over a divisor: of sequences, or of each token."""
    share = (1.0 if each else lengths(case)) / divisor(case)
    by = case.batch.responses.spread(share * np.ones(case.batch.responses.count))
    own = _TOKEN if each else case.objective.ratio
    return case.evaluated(ratio=tapped(own, partial(scaled_ratio, by=by)))


def _steep(case: Case) -> Breakdown:
    spread = case.batch.responses.spread(lengths(case))

    def changed(ratio: Ratio) -> Ratio:
        return ratio._replace(pull=lambda slope: spread * ratio.pull(slope))

    return case.evaluated(ratio=tapped(case.objective.ratio, changed))


def scaled_ratio(r: Ratio, by: F64 | float) -> Ratio:
    """The ratio to the power ``by``."""
    log_ratio = by * r.log_ratio
    return Ratio(log_ratio, np.exp(log_ratio), lambda slope: by * r.pull(slope))


# ---- corrections and entropy bonuses ------------------------------------------------------------


def corrections(case: Case) -> Iterator[Cause]:
    """Yields a correction that is missing; ``weights`` has the other ones."""
    if case.objective.correction.choice.absent:
        return
    none = bind("correction", "none")
    yield catalogued("correction-dropped", partial(Case.evaluated, correction=none))


_POLICIES = {"π_old": "log_probs_old", "π_engine": "log_probs_rollout", "π_θ": "log_probs_new"}
_PRODUCT, _SUM = "correction-product-or-mean", "correction-sum-of-ratios"
_LEVELS: Mapping[str, tuple[str, Callable[[F64, Segments], F64]]] = {
    "token by token": ("other-correction", lambda d, _: np.exp(d)),
    "the product over each response": (_PRODUCT, lambda d, rows: rows.spread(np.exp(rows.sum(d)))),
    "the geometric mean over each response": (
        _PRODUCT,
        lambda d, rows: rows.spread(np.exp(rows.mean(d))),
    ),
    "the sum over each response": (_SUM, lambda d, rows: rows.spread(rows.sum(np.exp(d)))),
    "the mean over each response": (_SUM, lambda d, rows: rows.spread(rows.mean(np.exp(d)))),
}
"""Of a weight log quotients d [N] → the mistake, and the weight."""


def weights(case: Case) -> Iterator[Cause]:
    """Yields every weight of a quotient of policies, at every level.

    Many give nearly one loss, so of a loss alone each is named only if it explains all records.
    """
    for above, below in permutations(_POLICIES, 2):
        for level, mean in product(_LEVELS, ("", ", divided by its mean")):
            made = partial(_corrected, above=above, below=below, level=level, mean=bool(mean))
            name = "correction-mean-left" if mean else _mistake(above, below, level)
            words, alone = _weight_words(case, above, below, level), case.is_loss_alone
            whole = f"{words}{mean}"
            yield Cause(name, whole, made, for_all=alone, adds_to=(words,) if mean else ())


def _mistake(above: str, below: str, level: str) -> str:
    """The mistake that a weight of a quotient of policies is."""
    if "π_engine" not in (above, below):
        return "ratio-twice"
    if above == "π_engine":
        return "correction-inverted"
    return "correction-of-new" if above == "π_θ" else _LEVELS[level][0]


def _weight_words(case: Case, above: str, below: str, level: str) -> str:
    own = (above, below) == ("π_θ", "π_old") and case.objective.correction.choice.absent
    called = "the ratio twice: a weight of" if own else "correction by"
    return f"{called} {above}/{below}, {level}"


def _corrected(case: Case, above: str, below: str, level: str, *, mean: bool) -> Breakdown:
    """The record with a weight of a quotient of policies."""
    quotient = case.column(_POLICIES[above]) - case.column(_POLICIES[below])
    weight = _LEVELS[level][1](quotient, case.batch.responses)
    weight = weight / max(float(weight.mean()), 1e-12) if mean else weight
    return case.evaluated(correction=Bound("quotient", Choice(lambda: Correction(weight)), {}))


def entropies(case: Case) -> Iterator[Cause]:
    """Yields an entropy bonus that is missing, of the wrong sign, or there though nobody set it."""
    if case.breakdown.term(ENTROPY) is None:
        yield from _bonuses(case)
        return
    made = partial(Case.with_coefficient, name=ENTROPY)
    yield catalogued("entropy-dropped", partial(made, factor=0.0))
    yield catalogued("entropy-sign", partial(made, factor=-1.0))


def _bonuses(case: Case) -> Iterator[Cause]:
    """Yields the coefficient, if it has two digits, of recorded entropies that the loss has."""
    if case.batch.entropies is None or case.loss is None:
        return
    ours = float(case.breakdown.record_objective[0])
    off = case.loss - ours
    room = max(case.loss_room, FLOAT32_LOSS * abs(case.loss)) / (abs(off) or 1.0)
    own = case.objective.aggregate
    for name in dict.fromkeys((own.name, "token-mean", "response-mean")):
        mean = None if name == own.name else bind("aggregate", name)
        added = partial(_with_bonus, aggregate=mean)
        unit = float(added(case, coefficient=1.0).record_objective[0]) - ours
        coefficient = off / unit if unit else 0.0
        typed = float(f"{coefficient:.2g}")
        if typed > 0.0 and abs(coefficient / typed - 1.0) <= room <= 1e-4:
            words = f"entropy bonus that no setting asks for: entropy_coef {typed:g} ({name})"
            made = partial(added, coefficient=typed)
            yield Cause("entropy-added", words, made, for_all=case.is_loss_alone)


def _with_bonus(case: Case, coefficient: float, aggregate: Bound | None) -> Breakdown:
    bonus = bind("entropy", "bonus", entropy_coef=coefficient)
    return case.evaluated(entropy=bonus, entropy_aggregate=aggregate)


# ---- the tables: tried last, since many choices fit by chance -----------------------------------


def neutral(case: Case) -> Iterator[Cause]:
    """Yields the ratios and aggregations that belong to no framework."""
    yield from others(case, "ratio", neutral=True)
    if case.other_weights:
        yield from others(case, "aggregate", neutral=True)


def any_choice(case: Case) -> Iterator[Cause]:
    """Yields all other choices."""
    yield from others(case, "surrogate", neutral=True)
    for stage in ("aggregate", "ratio", "surrogate", "correction"):
        if stage != "aggregate" or case.other_weights:
            yield from others(case, stage, neutral=False)
    if not case.objective.advantage.choice.given:
        yield from others(case, "advantage", neutral=False)


def others(case: Case, stage: str, *, neutral: bool) -> Iterator[Cause]:
    """Yields a stage's other choices that belong to no framework, or those that do."""
    own: Bound = getattr(case.objective, stage)
    known = {
        name: value
        for bound in case.objective.stages.values()
        for name, value in bound.values.items()
        if name in HYPERPARAMETERS and value is not None
    } | {**case.record.hyperparameters}
    for name, choice in STAGES[stage].choices.items():
        if name == own.name or (choice.given and stage == "advantage"):
            continue
        if neutral != ("/" not in name):
            continue
        per_response = choice.function.__annotations__.get("return") == "F64"  # as it says
        if stage == "advantage" and per_response and not case.other_advantages:
            continue
        bound = bound_to(name, choice, known)
        if bound is None:
            continue
        words = f"{_kind(stage, own.choice, choice)}{stage} {name} instead of {own.name}"
        cause = swapped(_ROWS.get(name, f"other-{stage}"), stage, words, bound)
        plain = worded(_OTHER_POLICY[name])[1] if name in _OTHER_POLICY else ""
        simpler = (plain, f"{plain}{_BY_TOKEN}") if plain else ()
        yield cause._replace(equal=_is_foreign(case, name), adds_to=simpler)


def _is_foreign(case: Case, name: str) -> bool:
    """Whether a choice is another framework's, whose code the trainer will not have run."""
    framework, _, rest = name.partition("/")
    own = {bound.name.partition("/")[0] for bound in case.objective.stages.values()}
    return bool(rest) and framework not in own | {case.objective.name.partition("/")[0]}


_ROWS = {
    "token-mean": "token-for-response-mean",
    "response-mean": "token-for-response-mean",
    "prompt-mean": "batch-for-prompt",
    "token-sum": "denominator-other",
    "sum": "denominator-missing",
    "token-sum-norm": "constant-length",
    "token": "ratio-level",
    "sequence": "ratio-level",
    "sequence-token": "ratio-slope",
    "product": "ratio-of-sums",
}
"""Choice → the mistake that taking it for another one is."""


def _kind(stage: str, own: Choice, other: Choice) -> str:
    """What swapping one aggregation for another comes to."""
    if stage != "aggregate":
        return ""
    if own.total and not other.total:
        return "mean instead of a sum: "
    if other.total and not own.total:
        return "sum instead of a mean: "
    return "other denominator: "
