"""Where a record is wrong, whatever the mistake is, and which stages can make such a difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from os import environ
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.commands.verify.causes import denominators, masks
from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.cause import IMPOSSIBLE, STRICT
from grpo_cli.objective.inputs import Inputs
from grpo_cli.objective.terms import ENTROPY, KL
from grpo_cli.terminal.numbers import is_round

Flags = NDArray[np.bool_]


class Located(NamedTuple):
    """What the numbers show of a difference.

    Attributes:
        words: one sentence, true whatever the cause is.
        stages: the stages that can make such a difference; none where the numbers do not tell.
    """

    words: str
    stages: tuple[str, ...] = ()


UNKNOWN = Located("")
DIFFERS = "the loss differs"
HINT = "; one loss fits many mistakes: record loss_gradient, or more losses, to narrow them down"
"""Printed where one loss is all that is expected, the first where it is no multiple of grpo's."""

LOOK = "; look at "
"""Before the stages that can make such a difference, which a cause makes superfluous."""

_OF_STAGES: Mapping[str, str] = {
    "advantage": "the advantages",
    "ratio": "the ratio",
    "surrogate": "the clip",
    "kl": "the KL",
    "correction": "the correction for the engine",
    "aggregate": "the denominator",
    "mask": "the mask",
    "input": "the log-probs",
    "entropy": "the entropy bonus",
    "loss": "one constant factor on the whole loss",
    "tokens": "tokens that are lost or doubled",
}
"""What a stage is called in a sentence; others are not."""


def located(case: Case) -> Located:
    """Says where the numbers differ, and what that follows; a test that fails says nothing."""
    for test in _TESTS:
        try:
            found = test(case)
        except IMPOSSIBLE:
            if STRICT in environ:
                raise
            continue
        if isinstance(found, Located):
            return found
        if found is not None:
            words, *stages = found
            if case.has_unused_reference and "kl" not in stages:
                stages.append("kl")
            return Located(f"{words}{LOOK}{_listed(case, stages)}", tuple(stages))
    return UNKNOWN


def _listed(case: Case, stages: Sequence[str]) -> str:
    """Joins what stages are called in a sentence; a surrogate without bounds has no clip."""
    called = {**_OF_STAGES}
    if case.objective.surrogate.choice.window is None:
        called["surrogate"] = "the surrogate"
    known = [called[stage] for stage in dict.fromkeys(stages) if stage in called]
    return " or ".join(filter(None, [", ".join(known[:-1]), *known[-1:]]))


Found = tuple[str, ...]
"""Words, and stages."""


def _wrong(case: Case) -> Flags:
    """[N] the gradients that differ."""
    assert case.gradient is not None
    wrong: Flags = ~case.near(case.gradient, case.breakdown.gradient)
    return wrong


def _count(wrong: Flags) -> str:
    return f"{int(wrong.sum()):,} of {len(wrong):,} gradients"


# ---- values without gradients --------------------------------------------------------------------


def _recorded(case: Case) -> Located | None:
    """Returns the first stage with recorded numbers that differ."""
    stages = ("advantage", "ratio", "surrogate", "kl")
    for column in case.columns:
        stage, level = column.expectation.stage, column.expectation.level
        if stage not in stages or level == "record":
            continue
        agrees = case.tolerance.agree(column, column.found)
        if agrees.all():
            continue
        count = f"{int((~agrees).sum()):,} of {len(agrees):,} {column.key}"
        scale = float(column.found @ column.values) / (float(column.found @ column.found) or 1.0)
        alike = case.tolerance.agree(column, scale * column.found).all()
        how = f", by one factor: yours are the computed ones times {scale:.5g}" if alike else ""
        near = ("input", "mask") if stage == "ratio" else ()
        if case.gradient is not None and case.agreeing_gradients.all():
            how += ", though the gradient agrees"
        return Located(f"{count} already differ{how}", (stage, *near))
    return None


def _of_values(case: Case) -> Located | None:
    if case.gradient is not None and len(case.breakdown.gradient):
        return None
    alone = case.is_loss_alone and case.loss is not None
    return Located(f"{ratio_words(case) or DIFFERS}{HINT}" if alone else "")


def ratio_words(case: Case) -> str:
    """Says by which factor a loss is off, if somebody may have made it; else ""."""
    ours = float(case.breakdown.record_objective[0])
    factor = case.loss / ours if case.loss and ours else 0.0
    near = abs(factor - float(f"{factor:.3g}")) <= 1e-5 * abs(factor)
    readable = 1e-9 < abs(factor) < 1e9 and (near or is_round(1.0 / factor, 1e-5))
    if not readable:
        return ""
    count = max(abs(factor), 1.0 / abs(factor))
    alike = (each for each in _counts(case) if each[1] > 1 and abs(each[1] - count) <= 1e-5 * count)
    name, count = next(alike, ("", count))
    more = abs(factor) > 1.0
    done = f"is missing, divide by {count:g}" if more else "may be taken twice"
    why = f", and {count:g} is {name}: the mean over them {done}" if name else ""
    return f"your loss is the computed one times {factor:.5g}{why}"


def _counts(case: Case) -> Iterator[tuple[str, float]]:
    """Yields what a mean may be over; a count of 1 changes nothing."""
    yield "the number of accumulation steps", denominators.accumulation_steps(case)
    sizes = np.bincount(case.batch.groups)
    if (sizes == sizes[0]).all():
        yield "the number of responses in a group", float(sizes[0])
    yield from denominators.batch_counts(case)


def _without_gradient(case: Case) -> Found | None:
    if _wrong(case).any():
        return None
    words = "the gradient agrees: only values differ (a constant, or a term without gradient)"
    silent = [at for name, at in ((ENTROPY, "entropy"), (KL, "kl")) if case.breakdown.term(name)]
    words = "; ".join(filter(None, [words, ratio_words(case)]))
    return words, *silent, "surrogate", "loss", "tokens", "mask"


def _outside(case: Case) -> Located | None:
    """Looks for gradients of tokens that do not count."""
    written = case.written_gradient
    assert written is not None
    there = (np.abs(written) > case.quiet) & ~case.mask
    if not there.any():
        return None
    words = f"{int(there.sum()):,} of {int((~case.mask).sum()):,} masked tokens have a gradient"
    return Located(f"{words}; look at the mask", ("mask", "kl", "input"))


# ---- factors -------------------------------------------------------------------------------------


def _parts(case: Case) -> tuple[F64, F64]:
    """The gradients of the policy term, and of the others."""
    return case.policy_gradient, case.without_policy.gradient


def _everywhere(case: Case) -> tuple[str, ...]:
    """What multiplies the policy term, where nothing more is known."""
    objective = case.objective
    engine = case.batch.log_probs_rollout is not None
    of_responses = "responses" in objective.surrogate.choice.columns
    sequence = objective.ratio.choice.per_response or of_responses
    return (("correction",) if engine else ()) + (("ratio", "surrogate") if sequence else ())


def _of_others(case: Case, there: Flags) -> tuple[str, ...]:
    """The stage of the KL, where it has a gradient at some of these tokens."""
    rest = case.without_policy.gradient
    return ("kl",) if np.abs(rest[there]).max(initial=0.0) > case.quiet else ()


_NOTHING = 1e-6
"""A term whose factor is at most this is not there."""


def _by_one_factor(case: Case) -> Found | None:
    policy, rest = _parts(case)
    wanted, ours = case.gradient, case.breakdown.gradient
    assert wanted is not None
    if not np.abs(wanted).max(initial=0.0) > case.quiet:
        return "all of your gradients are 0", "advantage", "loss", "mask", "ratio", "surrogate"
    if not np.abs(ours).max(initial=0.0) > 0.0:
        return "all computed gradients are 0, and yours are not", "advantage", "mask"
    both = np.abs(rest).max() > case.quiet and np.abs(policy).max() > case.quiet
    factor = float(ours @ wanted) / float(ours @ ours)
    if case.near(factor * ours, wanted).all():
        words = (
            f"all gradients differ by one factor: yours are the computed ones times {factor:.5g}"
        )
        alone = not both or case.near(factor * policy + rest, wanted).all()
        more = () if not alone else ("advantage", "kl") if rest.any() else ("advantage",)
        stages = ("aggregate", *more, *_everywhere(case), "mask", "loss")
        return words, *dict.fromkeys(stages)
    if not both:
        return None
    (a, b), *_ = np.linalg.lstsq(np.stack([policy, rest], axis=1), wanted, rcond=None)
    if not case.near(a * policy + b * rest, wanted).all():
        return None
    if abs(a - 1.0) <= 1e-4:
        name = "KL" if case.breakdown.term(KL) is not None else "other"
        words = f"the policy term agrees, and your {name} term is the computed one times {b:.5g}"
        if abs(b) <= _NOTHING:
            words = f"the policy term agrees, and your gradient has no {name} term"
        return words, "kl", "mask", "entropy"
    if abs(a) <= 1e-4:
        lost = ("advantage", "ratio", "surrogate", "correction", "mask")
        return "your policy term has no gradient: only the KL has", *lost
    if abs(b - 1.0) <= 1e-4:
        words = f"the KL agrees, and your policy term is the computed one times {a:.5g}"
        return words, *dict.fromkeys(("advantage", "surrogate", *_everywhere(case), "aggregate"))
    factors = [f"is the computed one times {factor:.5g}" for factor in (a, b)]
    words = f"your policy term {factors[0]}, and your KL {factors[1]}"
    return words, "aggregate", "kl", "advantage"


def _turns(case: Case) -> I64 | None:
    if case.batch.turn_ids is None and case.batch.trajectories is None:
        return None
    order = Inputs(case.batch).get("turn_order")
    return order.turns.spread(np.arange(order.turns.count)) if order.number.any() else None


def _groups(case: Case) -> I64 | None:
    return case.batch.responses.spread(case.batch.groups) if case.batch.group_count > 1 else None


def _trajectories(case: Case) -> I64 | None:
    found = case.batch.trajectories
    return None if found is None else case.batch.responses.spread(found)


def _after(responses: Segments) -> I64:
    return responses.spread(responses.lengths) - 1 - responses.positions


_POLICY = ("advantage", "aggregate")
_CELLS: Sequence[tuple[str, Callable[[Case], I64 | None], tuple[str, ...]]] = (
    (
        "sign of the advantage",
        lambda case: (case.breakdown.advantage > 0).astype(np.int64),
        ("surrogate", "advantage"),
    ),
    ("group", _groups, _POLICY),
    ("trajectory", _trajectories, _POLICY),
    ("response", lambda case: case.batch.responses.index, _POLICY),
    ("turn", _turns, (*_POLICY, "ratio")),
    ("position from the end", lambda case: _after(case.batch.responses), ("advantage", "mask")),
)
"""By what tokens may have one factor, and the stages that then made it."""


def _by_cells(case: Case) -> Found | None:
    """Looks for the coarsest cut of the tokens in which each part has one factor."""
    policy, rest = _parts(case)
    wanted, ours = case.gradient, case.breakdown.gradient
    assert wanted is not None
    both = bool(np.abs(rest).max(initial=0.0) > case.quiet)
    for name, cells, stages in _CELLS:
        if (cut := cells(case)) is None:
            continue
        if (found := _factors(case, cut, wanted - rest, policy)) is not None:
            of = "the policy term differs" if both else "the gradients differ"
            words = f"{of} by one factor per {name} ({_numbers(found)})"
            return words, *dict.fromkeys((*stages, *_everywhere(case)))
        if both and (found := _factors(case, cut, wanted, ours)) is not None:
            of = "the gradients, with the KL's, differ"
            return f"{of} by one factor per {name} ({_numbers(found)})", "aggregate", "mask"
        if both and (found := _factors(case, cut, wanted - policy, rest)) is not None:
            return f"the KL differs by one factor per {name} ({_numbers(found)})", "kl", "mask"
    return None


def _factors(case: Case, cells: I64, wanted: F64, ours: F64) -> F64 | None:
    """[cells] the factor of each, NaN where none shows; None where some cell has no single one."""
    loud = np.abs(ours) > 3.0 * case.quiet
    square = np.bincount(cells, ours * ours)
    enough = np.bincount(cells, loud) > 0
    if int(loud.sum()) < 2 * int(enough.sum()) or not enough.any():
        return None
    found = np.where(enough, np.bincount(cells, ours * wanted) / np.where(enough, square, 1.0), 1.0)
    room = max(case.tolerance.rtol, 1e-6) * float(np.abs(case.gradient).max(initial=0.0))  # type: ignore[arg-type]
    if not (np.abs(found[cells] * ours - wanted) <= room).all():
        return None
    other = enough & (np.abs(found - 1.0) > 1e-3)
    if np.bincount(cells, loud)[other].sum() < 2 * other.sum():
        return None  # a factor that one token alone shows is none
    return np.where(enough, found, np.nan)


def _numbers(factors: F64) -> str:
    """The factors of a cut, from the least to the greatest."""
    found = np.where(np.abs(factors) <= _NOTHING, 0.0, factors)
    values = list(dict.fromkeys(f"{x:.4g}" for x in np.sort(found[np.isfinite(found)])))
    return ", ".join(values) if len(values) <= 3 else f"{values[0]} to {values[-1]}"


# ---- places --------------------------------------------------------------------------------------


def _other_turns(case: Case, *, first: bool) -> Flags:
    """[N] the tokens of all turns but the first, or the last."""
    if _turns(case) is None:
        return np.zeros(case.batch.responses.total, dtype=np.bool_)
    order = Inputs(case.batch).get("turn_order")
    edge = order.number == 0 if first else order.following(np.ones(order.turns.count)) == 0.0
    found: Flags = ~order.turns.spread(edge)
    return found


def _beyond(case: Case) -> Flags:
    """[N] the tokens whose ratio is outside of the clip range, whatever their advantage."""
    values, ratio = case.objective.surrogate.values, case.breakdown.ratio
    low, high = (float(values.get(name) or 0.0) for name in ("epsilon_low", "epsilon_high"))
    return (ratio < 1.0 - low) | (ratio > 1.0 + high)


_CHANCE = 0.01
"""Of tokens drawn at random, how seldom all of them have to be in a place that is named."""
_CLIP = ("surrogate", "ratio")
_EDGE = ("mask", "tokens", "aggregate", "input", "advantage")
_TURN = ("mask", "advantage", "tokens")
_PLACES: Sequence[tuple[str, Callable[[Case], Flags], tuple[str, ...]]] = (
    ("the clipped tokens", lambda case: case.breakdown.clip != 0, _CLIP),
    ("the tokens whose ratio is outside of the clip range", _beyond, _CLIP),
    ("the last token of each response", masks.last, _EDGE),
    ("the first token of each response", masks.first, _EDGE),
    ("all turns but the first", partial(_other_turns, first=True), _TURN),
    ("all turns but the last", partial(_other_turns, first=False), _TURN),
    ("the tokens with A > 0", lambda case: case.breakdown.advantage > 0, ("surrogate", *_POLICY)),
    ("the tokens with A < 0", lambda case: case.breakdown.advantage < 0, ("surrogate", *_POLICY)),
    ("the tokens with a ratio above 1", lambda case: case.breakdown.ratio > 1.0, _CLIP),
    ("the tokens with a ratio below 1", lambda case: case.breakdown.ratio < 1.0, _CLIP),
)


def _in_one_place(case: Case, *, exactly: bool) -> Found | None:
    """Looks for a place that has all tokens that differ; or has them, and none that agree."""
    assert case.gradient is not None
    wrong = _wrong(case)
    lost = not np.abs(case.gradient[wrong]).max() > case.quiet
    how = ", where yours are 0" if lost else ""
    seen = np.abs(case.breakdown.gradient) > case.quiet
    for words, where, stages in _PLACES:
        there = where(case)
        if not there.any() or (wrong & ~there).any() or not (seen & ~there & ~wrong).any():
            continue
        if exactly and not (wrong | ~there | ~seen).all():
            continue
        if not exactly and there.mean() ** int(wrong.sum()) > _CHANCE:
            continue
        only = "exactly" if exactly else "only among"
        more = (*_of_others(case, wrong), *(("mask", "tokens") if lost else ()))
        return f"{_count(wrong)} differ, {only} {words}{how}", *dict.fromkeys((*stages, *more))
    return None


def _without_some(case: Case) -> Found | None:
    """Looks for tokens without gradient, where one factor, or one per response, gives the others.

    Where these are whole responses they may have no advantage; else they are masked or rejected.
    """
    wanted, ours = case.gradient, case.breakdown.gradient
    assert wanted is not None
    rows, seen = case.batch.responses.index, np.abs(ours) > 3.0 * case.quiet
    lost = seen & (np.abs(wanted) <= case.quiet)
    kept = ~lost & seen
    if not lost.any() or not kept.any() or kept.sum() < 3:
        return None
    others = np.where(lost, 0.0, ours)
    rest_of_yours, of = np.where(lost, 0.0, wanted), "one factor"
    factors = _factors(case, 0 * rows, rest_of_yours, others)
    if factors is None:
        factors, of = _factors(case, rows, rest_of_yours, others), "one factor per response"
    if factors is None:
        return None
    named = _place(case, lost, seen)
    whole = not np.isin(rows[lost], rows[kept]).any()
    alike = bool(np.nanmax(np.abs(factors - 1.0)) <= 1e-3)
    rest = "the others agree" if alike else f"the others differ by {of} ({_numbers(factors)})"
    where = f"exactly {named}" if named else "whole responses" if whole else "single tokens"
    clipped = _is_clip(case, lost, kept) or case.objective.surrogate.choice.window is None
    stages = (("surrogate",) if clipped else ()) + _of_others(case, lost)
    stages += ("mask", "tokens", "advantage")
    stages += _everywhere(case) + (() if alike else ("aggregate",))
    words = f"{int(lost.sum()):,} of {int(seen.sum()):,} gradients are 0 ({where}), and {rest}"
    return words, *dict.fromkeys(stages)


def _place(case: Case, lost: Flags, seen: Flags) -> str:
    """The place that has all of these tokens of those that are seen, and no others; "" for none."""
    exact = (words for words, where, _ in _PLACES if np.array_equal(where(case)[seen], lost[seen]))
    return next(exact, "") if lost.any() else ""


def _is_clip(case: Case, lost: Flags, kept: Flags) -> bool:
    """Whether bounds on the ratio, whatever they are, take these tokens and leave the others."""
    for mine in (case.breakdown.advantage > 0.0, case.breakdown.advantage < 0.0):
        ratios = case.breakdown.ratio[mine & lost], case.breakdown.ratio[mine & kept]
        if all(map(len, ratios)) and not (
            ratios[0].min() > ratios[1].max() or ratios[0].max() < ratios[1].min()
        ):
            return False
    return True


def _by_advantage(case: Case) -> Found | None:
    """Looks for one advantage per response that gives all gradients, with another sign or for 0."""
    own, found = case.breakdown.response_advantage, case.effective_advantages
    if own is None or found is None or not case.other_advantages:
        return None
    size = float(np.abs(own).max(initial=0.0))
    other = np.isfinite(found) & (np.abs(found - own) > 1e-3 * size)
    if not other.any() or case.batch.responses.lengths[other].max() < 3:
        return None
    at = int(np.argmax(other))
    words = (
        f"one advantage per response gives the gradients: {int(other.sum()):,} of {len(own):,} "
        f"differ (response {at} has {found[at]:.5g} instead of {own[at]:.5g})"
    )
    return words, "advantage"


def _by_token(case: Case) -> Found:
    """Says what is left: each token has a factor of its own, or the KL adds one."""
    (policy, rest), wrong = _parts(case), _wrong(case)
    assert case.gradient is not None
    signs = np.sign(case.gradient[wrong]) == np.sign(case.breakdown.gradient[wrong])
    stages = ("ratio", "surrogate", "input", "advantage", *_everywhere(case))
    silent = np.abs(policy) <= 0.1 * case.quiet
    loud = silent & (np.abs(rest) > case.quiet)
    rows = case.batch.responses
    touched = np.unique(rows.index[wrong])
    words = f"{_count(wrong)} differ"
    if len(touched) < int((rows.lengths > 0).sum()):
        some = ", ".join(map(str, touched[:5].tolist())) + (", …" if len(touched) > 5 else "")
        words += f", in response{'' if len(touched) == 1 else 's'} {some}"
    words += ", by a factor that differs from token to token" if wrong.sum() > 1 else ""
    seen = np.abs(case.breakdown.gradient) > 3.0 * case.quiet
    if place := _place(case, seen & (np.abs(case.gradient) <= case.quiet), seen):
        words += f", and yours are 0 exactly at {place}"
        stages = ("mask", "tokens", *stages, "kl")
    elif rest.any() and not (loud.any() and case.near(case.gradient, rest)[loud].all()):
        stages = (*stages, "kl")
    elif rest.any():
        words += f"; they agree at the {int(loud.sum()):,} tokens where the policy term is clipped"
        words += " and the KL alone counts"
    words += "; the signs agree" if signs.all() else ""
    return words, *dict.fromkeys(stages)


_TESTS: Sequence[Callable[[Case], Located | Found | None]] = (
    _recorded,
    _of_values,
    _outside,
    _without_gradient,
    _by_one_factor,
    partial(_in_one_place, exactly=True),
    _without_some,
    _by_cells,
    _by_advantage,
    partial(_in_one_place, exactly=False),
    _by_token,
)
"""Those that leave the least open first."""
