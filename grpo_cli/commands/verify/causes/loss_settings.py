"""The ε or β that gives the losses of records, where losses are all that says what is wrong.

Some ε gives any one loss. That one round value gives the loss of every record is no chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice, product, starmap
from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.solving import STD_EPS, Curve
from grpo_cli.commands.verify.causes import choices, clips, denominators, statistics
from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.cause import Cause, on_top, other_value, swapped
from grpo_cli.commands.verify.causes.clips import window_words, with_window
from grpo_cli.commands.verify.causes.kl import (
    added,
    dropped,
    negated,
    penalties,
    strength,
    unused,
    usual,
)
from grpo_cli.commands.verify.compare import FLOAT32_LOSS
from grpo_cli.objective.choice import Bound
from grpo_cli.variants import bind

_BY_CHANCE = 0.02
"""Where more values than that are expected to give the losses by chance, none is named."""
_USUAL = (0.1, 0.15, 0.2, 0.25, 0.28, 0.3, 0.4, 0.5)
_BETAS = np.array([0.0, 0.001, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.1])
_ROUND = np.array(
    [
        *(float(f"{digits}e{power}") for power in range(-5, -1) for digits in range(10, 100)),
        *(float(f"{0.105 + 0.01 * step:.3f}") for step in range(90)),
        1.0,
    ]
)
"""[K] what people set: two digits, or three that end in 5."""


class _Guess(NamedTuple):
    """Values of one setting, or of two, that are tried together, the usual ones before others.

    Attributes:
        values: [K, 2] ε_low and ε_high, [K, 2] β and the index of its KL, or [K, 4] all of them.
        off: each record's [K] loss with them less the one that is expected.
        cause: makes the cause of the values that fit, the roundest first.
    """

    values: F64
    off: Sequence[F64]
    cause: Callable[[F64], Cause]

    def with_equal_sides(self) -> _Guess:
        """Those whose ε_low and ε_high are equal."""
        equal = self.values[:, 0] == self.values[:, 1]
        return self._replace(values=self.values[equal], off=[one[equal] for one in self.off])


def of_loss(case: Case) -> Iterator[Cause]:
    """Yields the ε or the β that gives a loss, where a loss is all that is expected."""
    if case.is_loss_alone:
        yield from shared([case])


def shared(cases: Sequence[Case], *, on_setting: bool = False) -> Iterator[Cause]:
    """Yields the ε, the β or both that give the losses of all records, unless chance might.

    Values of one setting are tried before those of two, and the usual ones before others.
    ``on_setting``: another setting is changed too, on which one loss leaves no room for values
    that are not usual.
    """
    if any(case.loss is None or case.gradient is not None for case in cases):
        return
    rooms = [_room(case) for case in cases]
    windows, betas = [*_windows(cases)], [*_betas(cases)]
    alone = len(cases) == 1
    if alone and on_setting:
        windows, betas = windows[:1], betas[:1]
    unusual = windows[:2]
    if alone:  # one loss leaves room for chance in more
        unusual = [one.with_equal_sides() for one in unusual]
    together = partial(_together, cases)
    usual = starmap(together, product(windows[:1], betas[:1]))
    others = [*product(unusual[:1], betas[1:]), *product(unusual[1:], betas[:1])]
    for guess in chain(windows, betas, usual):
        if len(fitting := _fitting(guess, rooms)):
            yield guess.cause(fitting)._replace(for_all=True)
    pairs = [(guess, _fitting(guess, rooms)) for guess in starmap(together, others)]
    if not alone or sum(len(fitting) for _, fitting in pairs) == 1:
        for guess, fitting in pairs:
            if len(fitting):
                yield guess.cause(fitting)._replace(for_all=True)


def _fitting(guess: _Guess, rooms: Sequence[float]) -> F64:
    """The values that give the losses of all records; none where chance might give some."""
    fitting, expected = np.ones(len(guess.values), np.bool_), float(len(guess.values))
    for off, room in zip(guess.off, rooms, strict=True):
        fitting &= np.abs(off) <= room
        spread = float(np.sqrt(12.0) * off.std())  # of numbers that are spread evenly
        expected *= min(2.0 * room / spread, 1.0) if spread else 1.0
    return guess.values[fitting & (expected <= _BY_CHANCE)]


def _together(cases: Sequence[Case], windows: _Guess, betas: _Guess) -> _Guess:
    """Every ε of one guess with every β of another, each of which adds to the loss."""
    many, each = len(windows.values), len(betas.values)
    values = [np.repeat(windows.values, each, axis=0), np.tile(betas.values, (many, 1))]
    pairs = zip(cases, windows.off, betas.off, strict=True)
    off = [(a[:, None] + b[None, :] - _off(case)).ravel() for case, a, b in pairs]

    def cause(fitting: F64) -> Cause:
        alike = fitting[(fitting[:, 2:] == fitting[0, 2:]).all(axis=1)]
        return both(betas.cause(alike[:1, 2:]), windows.cause(alike[:, :2]))

    return _Guess(np.concatenate(values, axis=1), off, cause)


def _off(case: Case) -> float:
    """J less the J that is expected."""
    assert case.loss is not None
    return float(case.breakdown.record_objective[0]) - case.loss


def _room(case: Case) -> float:
    """What the digits of a loss leave open."""
    size = abs(case.loss or 0.0) + 0.1 * float(case.breakdown.record_scale[0])
    return max(case.loss_room, FLOAT32_LOSS * size)


# ---- ε ------------------------------------------------------------------------------------------


def _windows(cases: Sequence[Case]) -> Iterator[_Guess]:
    """Yields ε on one side or the same on both, then both."""
    if any(case.objective.surrogate.choice.window != "product" for case in cases):
        return
    usual = np.array((*_USUAL, np.inf))
    (low, high), *others = {_own(case) for case in cases}
    if others:
        return
    cause = partial(_window, own=(low, high))
    for values in (usual, _ROUND):
        lows, highs = np.full(len(values), low), np.full(len(values), high)
        pairs = np.concatenate([(lows, values), (values, highs), (values, values)], axis=1).T
        pairs = pairs[(pairs != (low, high)).any(axis=1)]
        yield _Guess(pairs, [_loss_off(case, *pairs.T) for case in cases], cause)
    if len(cases) > 1:  # one loss is given by many pairs
        below, above = _ROUND[low != _ROUND], _ROUND[high != _ROUND]
        pairs = np.stack(np.meshgrid(below, above, indexing="ij"), axis=-1).reshape(-1, 2)
        yield _Guess(pairs, [_both_off(case, below, above) for case in cases], cause)


def _own(case: Case) -> tuple[float, float]:
    """The ε_low and ε_high that the record is evaluated with."""
    values = case.objective.surrogate.values
    return float(values["epsilon_low"] or 0.0), float(values["epsilon_high"] or 0.0)


def _window(fitting: F64, own: tuple[float, float]) -> Cause:
    """No bound, if that fits; else the roundest pair of those that fit, and the others' range."""
    if missing := [*map(tuple, fitting[np.isinf(fitting).any(axis=1)].tolist())]:
        pair = max(missing)
        mistake, words = _MISSING[pair[0] == np.inf, pair[1] == np.inf]
        words += " (or an ε that no ratio reaches)"
        return Cause(mistake, words, partial(with_window, pair=pair))
    low, high = min(fitting.tolist(), key=lambda pair: sum(len(f"{one:g}") for one in pair))
    words = f"ε is {low:g} instead of {' and '.join(f'{one:g}' for one in dict.fromkeys(own))}"
    words += f" (-p epsilon_low={low:g} -p epsilon_high={high:g})"
    if low != high or (fitting != low).any():
        spans = tuple(zip(fitting.min(axis=0).tolist(), fitting.max(axis=0).tolist(), strict=True))
        pinned = [least == most for least, most in spans]
        words = ", ".join(window_words((low, high), own, spans, pinned))
    return Cause("epsilon-other", words, partial(with_window, pair=(low, high)))


_MISSING = {
    (True, True): ("clip-unused", "clip missing"),
    (True, False): ("clip-one-side", "lower clip missing"),
    (False, True): ("clip-one-side", "upper clip missing"),
}
"""Whether ε_low and ε_high are infinite → the mistake and its words."""


def _loss_off(case: Case, low: F64, high: F64) -> F64:
    """[K] J with ε_low and ε_high less the J that is expected."""
    b = case.breakdown
    weight = b.token_weight * b.advantage
    off = np.full(len(low), _off(case))
    for turn, own, epsilon in zip((-1.0, 1.0), _own(case), (low, high), strict=True):
        mine = turn * b.advantage > 0
        curve = Curve.of(turn * (b.ratio[mine] - 1.0), turn * weight[mine])
        added = curve.at(np.append(own, epsilon))
        off += added[1:] - added[0]
    return off


def _both_off(case: Case, low: F64, high: F64) -> F64:
    """[K·L] it with every ε_low [K] and ε_high [L], which bound tokens of either sign of A."""
    own_low, own_high = _own(case)
    of_low = _loss_off(case, low, np.full(len(low), own_high))
    of_high = _loss_off(case, np.full(len(high), own_low), high)
    own = _loss_off(case, np.array([own_low]), np.array([own_high]))
    return (of_low[:, None] + of_high[None, :] - own).ravel()


# ---- β ------------------------------------------------------------------------------------------


def _betas(cases: Sequence[Case]) -> Iterator[_Guess]:
    """Yields β: the loss is linear in it. Where the objective has no KL, of each that it may have.

    Values are [K, 2]: β, and the index of the KL.
    """
    own, *others = {case.objective.beta for case in cases}
    if others:
        return
    kls, steps = _used(cases) if own else _unused(cases)
    if not np.any(steps):
        return
    for known in (_BETAS, _ROUND):
        betas = known[own != known]
        values = np.stack(np.meshgrid(betas, np.arange(len(kls)), indexing="ij"), axis=-1)
        pairs = zip(cases, steps, strict=True)
        off = [(_off(case) + (betas - own)[:, None] * step).ravel() for case, step in pairs]
        yield _Guess(values.reshape(-1, 2), off, partial(_beta, kls=kls, own=own))


_Kls = tuple[Sequence[Bound], Sequence[F64]]
"""K KLs, and each record's [K] change of J by 1 more of β."""


def _used(cases: Sequence[Case]) -> _Kls:
    """The KL of records."""
    steps = [case.without_policy.record_objective[:1] / case.objective.beta for case in cases]
    return [cases[0].objective.kl], steps


def _unused(cases: Sequence[Case]) -> _Kls:
    """The KLs that records may have and the objective has not; one of those of equal value."""
    kls = [*unused(cases[0])] if all(case.has_unused_reference for case in cases) else []
    found: dict[tuple[float, ...], Bound] = {}
    for bound in kls:
        steps = (
            (case.evaluated(kl=bound).record_objective - case.breakdown.record_objective)[0]
            for case in cases
        )
        found.setdefault(tuple(float(f"{step:.12g}") for step in steps), bound)
    return [*found.values()], [np.array(steps) for steps in zip(*found, strict=True)]


def _beta(fitting: F64, kls: Sequence[Bound], own: float) -> Cause:
    beta, at = min(fitting.tolist(), key=lambda pair: (len(f"{pair[0]:g}"), pair[1]))
    bound = kls[int(at)]
    if not own:
        return added(bound, beta)
    if not beta:
        return dropped(bound)
    words = other_value("beta", beta, own, bound.values, called="β is")
    return swapped("kl-beta", "kl", words, replace(bound, values={**bound.values, "beta": beta}))


# ---- two mistakes: another usual setting, and a mistake on top of it -----------------------------

_OF_STD = (("std_ddof", "ddof", (0, 1)), ("std_eps", "std_eps", STD_EPS))
"""What TRL, verl and papers subtract from n in the std, and add to it; a factor of all gradients
hides ε, not ddof."""


def settings(case: Case, *, more: bool) -> Iterator[Cause]:
    """Yields a KL that is missing or another one, as trainers' settings have it, and its β.

    And every usual ddof and std_eps. ``more``: any mistake about the KL or the std, and another
    choice at any stage, where a gradient or several losses leave nothing to chance.
    """
    of_kl, own = penalties(case) if more else usual(case), case.objective.advantage
    yield from islice(of_kl, 1)  # that it is missing is the most usual
    for name, called, usual_values in _OF_STD:
        for other in usual_values if name in own.values else ():
            if other != (stated := float(own.values[name] or 0.0)):
                words = other_value(name, other, stated, own.values, called=called)
                bound = Bound(own.name, own.choice, {**own.values, name: other})
                yield swapped(name.replace("_", "-"), "advantage", words, bound)
    if more and own.name == "group-std":
        words = "advantages not divided by the group's std"
        yield swapped("std-or-not", "advantage", words, bind("advantage", "group-mean"))
    for cause in of_kl:  # the sign as another KL, which a mistake on top of it keeps
        negative = cause.mistake == "kl-sign" and not case.objective.kl_in_reward
        turned = partial(Case.evaluated, kl=negated(case.objective.kl))
        yield cause._replace(evaluate=turned) if negative else cause
    yield from strength(case)
    if more:
        yield from _choices(case)


def _choices(case: Case) -> Iterator[Cause]:
    """Yields other ratios, denominators, clips and baselines."""
    yield from choices.ratios(case)
    yield from choices.others(case, "ratio", neutral=True)
    yield denominators.padded(case)
    yield from choices.others(case, "aggregate", neutral=True)
    yield from islice(clips.clips(case), _CLIPS)
    yield from statistics.centres(case)


_CLIPS = 5
"""The first of the list: no clip, max for min, no min, and a clip of one side."""


def both(setting: Cause, mistake: Cause) -> Cause:
    """The mistake on top of the setting."""
    return mistake._replace(
        words=f"{setting.words}, and {mistake.words}",
        evaluate=partial(on_top, first=setting, second=mistake),
        of=mistake.stage,
        for_all=True,
        adds_to=(setting.words,),
        by_record=setting.by_record and mistake.by_record,
    )
