"""Surrogates clipped or capped wrongly: PPO's two bounds, and the weight of CISPO."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.solving import roundest
from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.cause import Cause, catalogued, is_typed, swapped
from grpo_cli.commands.verify.expected import Flags
from grpo_cli.mistakes import worded
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound, Choice
from grpo_cli.objective.results import Surrogate, side, unbound
from grpo_cli.terminal.numbers import is_round

Form = Callable[[F64, F64, float, float], tuple[F64, F64 | None]]
"""ρ, A and both bounds → s and ∂s/∂log ρ (None where it is 0)."""


def right(ratio: F64, a: F64, low: float, high: float) -> tuple[F64, F64]:
    """min(ρ·A, clip(ρ)·A)."""
    return _sloped(np.minimum(ratio * a, np.clip(ratio, low, high) * a), ratio * a)


def _sloped(value: F64, free: F64) -> tuple[F64, F64]:
    """A value and its slope, which is ρ·A where the value is that, and else 0."""
    return value, np.where(value == free, free, 0.0)


def _only_bounded(ratio: F64, a: F64, low: float, high: float) -> tuple[F64, F64]:
    return _sloped(np.clip(ratio, low, high) * a, ratio * a)


def _without_exp(constant: float) -> Form:
    """Returns the right clip of a constant + log ρ."""

    def form(ratio: F64, a: F64, low: float, high: float) -> tuple[F64, F64]:
        linear = constant + np.log(ratio)
        value, _ = right(linear, a, low, high)
        return value, np.where(value == linear * a, a, 0.0)

    return form


Bounds = Callable[[float, float], tuple[float, float]]
"""ε_low and ε_high → both bounds."""


def usual_bounds(low: float, high: float) -> tuple[float, float]:
    """1 − ε_low and 1 + ε_high."""
    return 1.0 - low, 1.0 + high


def _no_bounds(*_: float) -> tuple[float, float]:
    return -np.inf, np.inf


CLIPS: Mapping[str, tuple[Form, Bounds]] = {
    "clip-unused": (right, _no_bounds),
    "clip-greater": (
        lambda r, a, *b: _sloped(np.maximum(r * a, np.clip(r, *b) * a), r * a),
        usual_bounds,
    ),
    "clip-both": (_only_bounded, usual_bounds),
    "clip-one-side.lower": (right, lambda _, high: (-np.inf, 1.0 + high)),
    "clip-one-side.upper": (right, lambda low, _: (1.0 - low, np.inf)),
    "epsilon-swapped": (right, lambda low, high: (1.0 - high, 1.0 + low)),
    "epsilon-high.low": (right, lambda low, _: (1.0 - low, 1.0 + low)),
    "epsilon-high.high": (right, lambda _, high: (1.0 - high, 1.0 + high)),
    "epsilon-reciprocal.lower": (right, lambda _, high: (1.0 / (1.0 + high), 1.0 + high)),
    "epsilon-reciprocal.upper": (
        right,
        lambda low, _: (1.0 - low, 1.0 / (1.0 - low) if low < 1.0 else np.inf),
    ),
    "clip-log-space": (right, lambda low, high: (float(np.exp(-low)), float(np.exp(high)))),
    "clip-through": (lambda r, a, *b: (right(r, a, *b)[0], r * a), usual_bounds),
    "clip-zeroed": (lambda r, a, *b: (right(r, a, *b)[1],) * 2, usual_bounds),
    "ratio-detached.policy": (lambda r, a, *b: (right(r, a, *b)[0], None), usual_bounds),
    "minimum-before-advantage": (
        lambda r, a, _, high: (np.minimum(r, high) * a, np.where(r <= high, r * a, 0.0)),
        usual_bounds,
    ),
    "ratio-without-exp.plus": (_without_exp(1.0), usual_bounds),
    "ratio-without-exp": (_without_exp(0.0), usual_bounds),
    "ratio-without-exp.free": (_without_exp(0.0), _no_bounds),
    "ratio-without-exp.freeplus": (_without_exp(1.0), _no_bounds),
}


def clips(case: Case) -> Iterator[Cause]:
    """Yields every wrong clip, of a surrogate that clips as PPO does."""
    surrogate = case.objective.surrogate
    if surrogate.choice.window != "product":
        return
    for key, (form, bounds) in CLIPS.items():
        yield catalogued(key, partial(bounded, form=form, bounds=bounds), by_record=True)
    yield catalogued("clip-fraction-sign", partial(bounded, counts_all=True), by_record=True)
    for key, name, value in _CAPS:
        if name in surrogate.values and surrogate.values[name] != value:
            yield catalogued(key, partial(_with_value, name=name, number=value))
    if surrogate.values.get("dual_clip") is not None:
        yield catalogued("dual-clip-positive", partial(bounded, always_dual=True))


def bounded(
    case: Case,
    form: Form = right,
    bounds: Bounds = usual_bounds,
    *,
    always_dual: bool = False,
    counts_all: bool = False,
) -> Breakdown:
    """Evaluates the record with another clip, and the further caps of its own.

    Args:
        case: the record.
        form, bounds: of the clip.
        always_dual: whether the dual clip acts where A > 0 too.
        counts_all: whether a token out of range is a clipped one where the clip does not act.
    """
    values = case.objective.surrogate.values
    low, high = bounds(float(values["epsilon_low"] or 0.0), float(values["epsilon_high"] or 0.0))
    delta, dual = (float(values.get(name) or np.inf) for name in ("delta", "dual_clip"))

    def clip(ratio: F64, advantage: F64) -> Surrogate:
        value, slope = form(ratio, advantage, low, high)
        losing = advantage < 0
        over_dual = np.zeros_like(losing)
        if np.isfinite(dual):
            over_dual = (value < dual * advantage) & (losing | always_dual)
        for cap, over in ((delta, losing & (ratio > delta)), (dual, over_dual)):
            if over.any():
                value = np.where(over, cap * advantage, value)
                slope = None if slope is None else np.where(over, 0.0, slope)
        acts = counts_all | (value != ratio * advantage)
        return Surrogate(value, side(ratio > high, ratio < low) * acts, slope, None)

    return case.evaluated(surrogate=Bound("clip", Choice(clip), {}))


_CAPS: Sequence[tuple[str, str, float | None]] = (
    ("dual-clip-added", "dual_clip", 3.0),
    ("dual-clip-dropped", "dual_clip", None),
    ("dual-clip-dropped.delta", "delta", None),
)


def _with_value(case: Case, number: float | None, name: str) -> Breakdown:
    surrogate = case.objective.surrogate
    changed = {**surrogate.values, name: number}
    return case.evaluated(surrogate=Bound(surrogate.name, surrogate.choice, changed))


def solved_dual(case: Case) -> Iterator[Cause]:
    """Yields the bound above which tokens with A < 0 have no gradient, which the loss says too."""
    wanted, b, own = case.expected_policy_gradient, case.breakdown, case.objective.surrogate.values
    if wanted is None or "dual_clip" not in own:
        return
    free = (b.advantage < 0.0) & (b.ratio > 1.0)
    free &= np.abs(b.token_weight * b.ratio * b.advantage) > 3.0 * case.quiet
    alive = np.abs(wanted) > case.quiet
    low = float(b.ratio[free & alive].max(initial=1.0))
    high = float(b.ratio[free & ~alive].min(initial=np.inf))
    if not low < high < np.inf:
        return
    number = roundest(low, high)
    meant = (
        f"is {number:g} instead of {own['dual_clip']:g}"
        if own["dual_clip"]
        else f"{number:g} added"
    )
    made = partial(_with_value, number=number, name="dual_clip")
    yield Cause("dual-clip-added", f"dual clip {meant}", made, equal=not is_typed(number, digits=3))


def reinforce(case: Case) -> Iterator[Cause]:
    """Yields the log-prob in the place of the ratio."""
    if case.batch.log_probs_new is not None:

        def log_prob(log_probs_new: F64, advantage: F64) -> Surrogate:
            return Surrogate(log_probs_new * advantage, unbound(len(advantage)), None, advantage)

        instead = Bound("reinforce", Choice(log_prob), {})
        yield catalogued("log-prob-for-ratio", partial(Case.evaluated, surrogate=instead))


# ---- the two bounds, solved for: which tokens have a gradient, and what the others add ----------


class Side(NamedTuple):
    """One bound on the ratio.

    Attributes:
        least, most: the ratios between which the gradients place it.
        clipped: [N] the tokens that it binds.
        slope: ∂J/∂bound, the sum of w·A over them.
    """

    least: float
    most: float
    clipped: Flags
    slope: float


def windows(case: Case) -> Iterator[Cause]:
    """Yields the roundest ε_low and ε_high that give the gradient, and the loss with it."""
    surrogate, wanted, b = case.objective.surrogate, case.expected_policy_gradient, case.breakdown
    if surrogate.choice.window != "product" or wanted is None:
        return
    own = tuple(float(surrogate.values[name] or 0.0) for name in ("epsilon_low", "epsilon_high"))
    alive = np.abs(wanted) > case.quiet
    under, over = side_of(case, alive, -1.0), side_of(case, alive, 1.0)
    if under is None or over is None:
        return
    spans = (
        (max(1.0 - under.most, 0.0), 1.0 - under.least),
        (max(over.least - 1.0, 0.0), over.most - 1.0),
    )
    seen = not _within(own, spans)
    slopes, rest, room = (-under.slope, over.slope), np.nan, np.inf
    if case.loss is not None:
        free = (b.token_weight * b.ratio * b.advantage)[~(under.clipped | over.clipped)].sum()
        silent = float(case.without_policy.record_objective[0])
        rest = case.loss - float(free) - silent - under.slope - over.slope
        room = 0.1 * case.tolerance.rtol * (abs(case.loss) + 0.1 * float(b.record_scale[0]))
    pairs = _pairs(own, spans, slopes, rest, room)
    for pair in sorted(pairs, key=_is_odd):
        pinned = [abs(slope) > 0.0 and rest == rest for slope in slopes]
        words = window_words(pair, own, spans, pinned=pinned)
        typed = all(map(is_round, pair))
        # an ε that moves no token in or out is fitted to the loss alone: tried if it is round
        if _within(pair, spans) and words and (seen or typed):
            made = partial(with_window, pair=pair)
            whole, odd = ", ".join(words), _is_odd(pair)
            simpler = tuple(words[:-1])
            yield Cause("epsilon-other", whole, made, "", odd, adds_to=simpler, by_record=True)


def _is_odd(pair: Pair) -> bool:
    """Whether nobody would set one of these ε, which another mistake may have moved."""
    return not all(is_typed(one, digits=3) for one in pair)


def with_window(case: Case, pair: Pair) -> Breakdown:
    """Evaluates the record with other ε_low and ε_high."""
    return bounded(case, bounds=lambda *_: (1.0 - pair[0], 1.0 + pair[1]))


Pair = tuple[float, ...]
Spans = tuple[tuple[float, float], ...]


def _within(pair: Pair, spans: Spans) -> bool:
    return all(low <= x <= high for x, (low, high) in zip(pair, spans, strict=True))


def _pairs(own: Pair, spans: Spans, slopes: Pair, rest: float, room: float) -> Iterator[Pair]:
    """Yields what gives slopes·pair = rest: one ε changed, both to one, or in proportion.

    An ε that the loss does not say is the record's own, or the roundest between the tokens.
    """
    usual = tuple(
        x
        if low <= x <= high
        else roundest(max(low, 0.02 * min(high, 1.0)), min(high, 2.0 * low + 0.1))
        for x, (low, high) in zip(own, spans, strict=True)
    )
    if not any(slopes) or np.isnan(rest):
        yield usual
        return
    (down, up) = slopes
    low, high = (x if slope else other for slope, x, other in zip(slopes, own, usual, strict=True))
    if down:
        yield _round((rest - up * high) / down, room / abs(down)), high
    if up:
        yield low, _round((rest - down * low) / up, room / abs(up))
    if both := down + up:
        equal = _round(rest / both, room / abs(both))
        yield equal, equal
    if both := down * own[0] + up * own[1]:
        yield own[0] * rest / both, own[1] * rest / both


def _round(value: float, room: float) -> float:
    return roundest(value - room, value + room)


def side_of(case: Case, alive: Flags, turn: float) -> Side | None:
    """Bounds the ratio where A has one sign; None where no bound could give the gradients.

    Tokens whose gradient is too small to decide are clipped where the ratios of others say so.
    """
    b = case.breakdown
    ratio, mine = turn * b.ratio, turn * b.advantage > 0
    loud = mine & (np.abs(b.token_weight * b.ratio * b.advantage) > 3.0 * case.quiet)
    inner = float(ratio[loud & alive].max(initial=-np.inf))
    outer = float(ratio[loud & ~alive].min(initial=np.inf))
    if outer < inner:
        return None
    clipped = mine & (ratio >= outer)
    least, most = sorted((turn * inner, turn * outer))
    return Side(least, most, clipped, float((b.token_weight * b.advantage)[clipped].sum()))


def window_words(pair: Pair, own: Pair, spans: Spans, pinned: Sequence[bool]) -> list[str]:
    """Names the bounds that are not as meant; empty if both are.

    Args:
        pair, own: ε_low and ε_high as they are, and as they are meant.
        spans: ranges in which no token decides.
        pinned: whether the loss says which it is.
    """
    changes = []
    names = ("epsilon_low", "epsilon_high")
    for name, value, meant, (low, high), sure in zip(names, pair, own, spans, pinned, strict=True):
        if abs(value - meant) > 1e-4 * max(abs(meant), 1e-6):
            which = f"from {low:.3g} to {high:.3g}" if np.isfinite(high) else f"above {low:.3g}"
            any_of = "" if sure else f" (any value {which} fits)"
            flag = f"(-p {name}={value:.4g})"
            changes.append(f"{name} {value:.4g}{any_of} instead of {meant:g} {flag}")
    return changes


# ---- the weight of CISPO: its cap, its stop-gradient --------------------------------------------


def weights(case: Case) -> Iterator[Cause]:
    """Yields other caps of CISPO's weight, and the gradient through it."""
    caps = _caps(case.objective.surrogate)
    if caps is None:
        return
    cap, other = caps
    at_other = f"bound at {'1 + ε_high' if other > cap else 'ε_high'} = {other:g}"
    bounds = {"": cap, "cispo-uncapped": np.inf, "cispo-bound": other}
    for (row, number), kind in product(bounds.items(), _FLOWS):
        named = [worded(key)[1] for key in (row, kind) if key not in ("", "cispo-bound")]
        if row == "cispo-bound":
            named.insert(0, at_other)
        if named:
            moving, cut = kind == "cispo-weight-gradient", kind == "cispo-gradient-cut"
            made = partial(_with_cap, cap=number, moving=moving, cut=cut)
            simpler = (named[0],) if row and kind else ()
            yield Cause(kind or row, ", and ".join(named), made, adds_to=simpler)
    for row, number in bounds.items():
        mistake, simple = worded("cispo-as-ratio")
        words = simple + ("" if number == np.inf else f", bounded above at {number:g}")
        words += f", and {at_other}" if row == "cispo-bound" else ""
        cause = swapped(
            mistake, "surrogate", words, Bound("unclipped", Choice(_at_most(number)), {})
        )
        yield cause._replace(adds_to=() if words == simple else (simple,))


_FLOWS = ("", "cispo-weight-gradient", "cispo-gradient-cut")
"""What flows through CISPO's weight."""


def _caps(surrogate: Bound) -> tuple[float, float] | None:
    """The cap of the weight, and the other of two: TRL's is ε_high itself, the paper's 1 + ε_high.

    None of a surrogate that caps no weight.
    """
    if not surrogate.name.endswith("cispo") or "epsilon_high" not in surrogate.values:
        return None
    epsilon = float(surrogate.values["epsilon_high"] or 0.0)
    base = 0.0 if surrogate.name == "trl/cispo" else 1.0
    return base + epsilon, 1.0 - base + epsilon


def _with_cap(case: Case, cap: float, *, moving: bool = False, cut: bool = False) -> Breakdown:
    """Evaluates the record with another cap of the weight."""
    least = max(1.0 - float(case.objective.surrogate.values.get("epsilon_low") or 1.0), 0.0)

    def surrogate(ratio: F64, advantage: F64, log_probs_new: F64) -> Surrogate:
        weight = np.clip(ratio, least, cap) * advantage
        high, low = ratio > cap, ratio < least
        free = ~(high | low)
        through = np.where(free, weight * log_probs_new, 0.0) if moving else None
        sides = side(high, low) * (advantage != 0)
        own = np.where(free, weight, 0.0) if cut else weight
        return Surrogate(weight * log_probs_new, sides, through, own)

    return case.evaluated(surrogate=Bound("cispo", Choice(surrogate), {}))


def _at_most(cap: float) -> Callable[[F64, F64], Surrogate]:
    """min(ρ, cap)·A."""

    def surrogate(ratio: F64, advantage: F64) -> Surrogate:
        value = np.minimum(ratio, cap) * advantage
        return Surrogate(value, unbound(len(value)), np.where(ratio <= cap, value, 0.0), None)

    return surrogate
