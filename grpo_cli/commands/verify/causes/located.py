"""Where a record is wrong, whatever the mistake is, and which stages can make such a difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from os import environ
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, Segments
from grpo_cli.commands.verify.causes import denominators, factors, masks
from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.cause import IMPOSSIBLE, STRICT
from grpo_cli.commands.verify.causes.factors import POLICY, places
from grpo_cli.commands.verify.compare import largest
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


def located(case: Case) -> list[Located]:
    """[M] where the numbers of records differ, and what that follows.

    A test that fails says nothing of one record. Of several each has to be tried alone.

    Raises:
        ValueError: and others of ``IMPOSSIBLE``, where a test fails on several records.
    """
    found, left = [UNKNOWN] * len(case.records), np.ones(len(case.records), dtype=np.bool_)
    for test in _TESTS:
        if not left.any():
            break
        try:
            for at, one in test(case, left):
                left[at] = False
                found[at] = one if isinstance(one, Located) else _with_stages(case, *one)
        except IMPOSSIBLE:
            if STRICT in environ or len(found) > 1:
                raise
    return found


def _with_stages(case: Case, words: str, *stages: str) -> Located:
    """Adds what the stages are called; a surrogate without bounds has no clip."""
    if case.has_unused_reference and "kl" not in stages:
        stages = (*stages, "kl")
    called = {**_OF_STAGES}
    if case.objective.surrogate.choice.window is None:
        called["surrogate"] = "the surrogate"
    known = [called[stage] for stage in stages if stage in called]
    listed = " or ".join(filter(None, [", ".join(known[:-1]), *known[-1:]]))
    return Located(f"{words}{LOOK}{listed}", stages)


Found = tuple[int, Located | tuple[str, ...]]
"""A record, and where its numbers differ, or words and stages of that."""


def _differing(case: Case) -> list[str]:
    """[M] how many gradients differ, in words."""
    counts = case.count(~case.agreeing_gradients).tolist(), case.tokens.lengths.tolist()
    return [f"{wrong:,} of {of:,} gradients" for wrong, of in zip(*counts, strict=True)]


# ---- values without gradients --------------------------------------------------------------------


def _recorded(case: Case, left: Flags) -> Iterator[Found]:
    """Finds the first stage with recorded numbers that differ."""
    stages = ("advantage", "ratio", "surrogate", "kl")
    for column in case.columns:
        stage, level = column.expectation.stage, column.expectation.level
        if stage not in stages or level == "record":
            continue
        agrees, cut = case.tolerance.agree(column, column.found), Segments(column.counts)
        wrong, square = cut.sum((~agrees).astype(np.int64)), cut.sum(column.found * column.found)
        scale = cut.sum(column.found * column.values) / np.where(square == 0.0, 1.0, square)
        scaled = case.tolerance.agree(column, cut.spread(scale) * column.found)
        alike = column.worst(~scaled) == 0.0
        near = ("input", "mask") if stage == "ratio" else ()
        for at in places(left & (wrong > 0)):
            words = f"{int(wrong[at]):,} of {int(column.counts[at]):,} {column.key} already differ"
            if alike[at]:
                words += f", by one factor: yours are the computed ones times {scale[at]:.5g}"
            if case.gradient is not None and not case.any(~case.agreeing_gradients)[at]:
                words += ", though the gradient agrees"
            yield at, Located(words, (stage, *near))


def _of_values(case: Case, left: Flags) -> Iterator[Found]:
    """Says what is known of records without gradients."""
    for at in places(left & ((case.tokens.lengths == 0) | (case.gradient is None))):
        alone = case.is_loss_alone and not np.isnan(case.losses[at])
        yield at, Located(f"{ratio_words(case, at) or DIFFERS}{HINT}" if alone else "")


def ratio_words(case: Case, at: int = 0) -> str:
    """Says by which factor a record's loss is off, if somebody may have made it; else ""."""
    yours, ours = float(np.nan_to_num(case.losses[at])), float(case.breakdown.record_objective[at])
    factor = yours / ours if yours and ours else 0.0
    near = abs(factor - float(f"{factor:.3g}")) <= 1e-5 * abs(factor)
    readable = 1e-9 < abs(factor) < 1e9 and (near or is_round(1.0 / factor, 1e-5))
    if not readable:
        return ""
    count = max(abs(factor), 1.0 / abs(factor))
    counts = _counts(case.alone(at))
    alike = (each for each in counts if each[1] > 1 and abs(each[1] - count) <= 1e-5 * count)
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


def _without_gradient(case: Case, left: Flags) -> Iterator[Found]:
    words = "the gradient agrees: only values differ (a constant, or a term without gradient)"
    silent = [at for name, at in ((ENTROPY, "entropy"), (KL, "kl")) if case.breakdown.term(name)]
    for at in places(left & ~case.any(~case.agreeing_gradients)):
        more = "; ".join(filter(None, [words, ratio_words(case, at)]))
        yield at, (more, *silent, "surrogate", "loss", "tokens", "mask")


def _outside(case: Case, left: Flags) -> Iterator[Found]:
    """Looks for gradients of tokens that do not count."""
    written, masked = case.written_gradient, ~case.mask
    if not case.is_masked or written is None:
        return
    cut = Segments(np.array([sum(one.widths) for one in case.records]))
    there = cut.sum((masked & (np.abs(written) > cut.spread(case.quiets))).astype(np.int64))
    count = cut.sum(masked.astype(np.int64))
    for at in places(left & (there > 0)):
        words = f"{int(there[at]):,} of {int(count[at]):,} masked tokens have a gradient"
        yield at, Located(f"{words}; look at the mask", ("mask", "kl", "input"))


# ---- places --------------------------------------------------------------------------------------


def _of_others(case: Case, there: Flags) -> list[tuple[str, ...]]:
    """[M] the stage of the KL, where it has a gradient at some of these tokens, [N]."""
    heard = case.any(there & case.loud(case.without_policy.gradient))
    return [("kl",) if one else () for one in heard.tolist()]


def _other_turns(case: Case, *, first: bool) -> Flags:
    """[N] the tokens of all turns but the first, or the last."""
    if factors.turns(case) is None:
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
    ("the tokens with A > 0", lambda case: case.breakdown.advantage > 0, ("surrogate", *POLICY)),
    ("the tokens with A < 0", lambda case: case.breakdown.advantage < 0, ("surrogate", *POLICY)),
    ("the tokens with a ratio above 1", lambda case: case.breakdown.ratio > 1.0, _CLIP),
    ("the tokens with a ratio below 1", lambda case: case.breakdown.ratio < 1.0, _CLIP),
)


def _in_one_place(case: Case, left: Flags, *, exactly: bool) -> Iterator[Found]:
    """Looks for a place that has all tokens that differ; or has them, and none that agree."""
    wanted, ours = factors.parts(case)[:2]
    wrong, seen = ~case.agreeing_gradients, case.loud(ours)
    count, lost = case.count(wrong), ~case.any(wrong & case.loud(wanted))
    others, differing = _of_others(case, wrong), _differing(case)
    for words, where, stages in _PLACES:
        there = where(case)
        fits = case.any(there) & ~case.any(wrong & ~there) & case.any(seen & ~there & ~wrong)
        if exactly:
            fits &= ~case.any(there & seen & ~wrong)
        else:
            share = case.count(there) / np.maximum(case.tokens.lengths, 1)
            fits &= share**count <= _CHANCE
        for at in places(left & (count > 0) & fits):
            only = "exactly" if exactly else "only among"
            how = ", where yours are 0" if lost[at] else ""
            more = (*others[at], *(("mask", "tokens") if lost[at] else ()))
            named = f"{differing[at]} differ, {only} {words}{how}"
            yield at, (named, *dict.fromkeys((*stages, *more)))


def _without_some(case: Case, left: Flags) -> Iterator[Found]:
    """Looks for tokens without gradient, where one factor, or one per response, gives the others.

    Where these are whole responses they may have no advantage; else they are masked or rejected.
    """
    wanted, ours = factors.parts(case)[:2]
    rows, seen = case.batch.responses, case.loud(ours, 3.0)
    lost = seen & ~case.loud(wanted)
    kept = seen & ~lost
    asked = left & case.any(lost) & (case.count(kept) >= 3)
    if not asked.any():
        return
    yours, others = np.where(lost, 0.0, wanted), np.where(lost, 0.0, ours)
    one = factors.of_cells(case, case.tokens.index, yours, others)
    each = factors.of_cells(case, rows.index, yours, others)
    torn = largest((largest(lost, rows) > 0.0) & (largest(kept, rows) > 0.0), case.batch.records)
    counts, of_all = case.count(lost), case.count(seen)
    named, clipped, kl = (
        _named(case, lost, seen),
        _are_clip(case, lost, kept),
        _of_others(case, lost),
    )
    for at in places(asked & (one.fit | each.fit)):
        of = "one factor" if one.fit[at] else "one factor per response"
        values = (one if one.fit[at] else each).of(at)
        alike = bool(np.nanmax(np.abs(values - 1.0)) <= 1e-3)
        rest = (
            "the others agree" if alike else f"the others differ by {of} ({factors.listed(values)})"
        )
        where = "single tokens" if torn[at] else "whole responses"
        where = f"exactly {named[at]}" if named[at] else where
        stages = (("surrogate",) if clipped[at] else ()) + kl[at]
        stages += ("mask", "tokens", "advantage")
        stages += factors.everywhere(case) + (() if alike else ("aggregate",))
        words = f"{int(counts[at]):,} of {int(of_all[at]):,} gradients are 0 ({where}), and {rest}"
        yield at, (words, *dict.fromkeys(stages))


def _named(case: Case, lost: Flags, seen: Flags) -> list[str]:
    """[M] the place that has all of some tokens of those that are seen, and no others; or ""."""
    found, some = [""] * len(case.records), case.any(lost)
    for words, where, _ in _PLACES:
        for at in places(some & ~case.any(seen & (where(case) != lost))):
            found[at] = found[at] or words
    return found


def _are_clip(case: Case, lost: Flags, kept: Flags) -> Flags:
    """[M] whether bounds on the ratio, whatever they are, take these tokens and leave the others.

    So it is where the surrogate has no bounds.
    """
    found = np.ones(len(case.records), dtype=np.bool_)
    if case.objective.surrogate.choice.window is None:
        return found
    for mine in (case.breakdown.advantage > 0.0, case.breakdown.advantage < 0.0):
        least, most = _edges(case, mine & lost)
        least_kept, most_kept = _edges(case, mine & kept)
        found &= (least > most_kept) | (most < least_kept)
    return found


def _edges(case: Case, tokens: Flags) -> tuple[F64, F64]:
    """[M] the least and the greatest ratio of some tokens; ∞ and −∞ where a record has none."""
    at, ratio = case.tokens.index[tokens], case.breakdown.ratio[tokens]
    least, most = np.full(len(case.records), np.inf), np.full(len(case.records), -np.inf)
    np.minimum.at(least, at, ratio)
    np.maximum.at(most, at, ratio)
    return least, most


def _by_token(case: Case, left: Flags) -> Iterator[Found]:
    """Says what is left: each token has a factor of its own, or the KL adds one."""
    wanted, ours, policy, rest = factors.parts(case)
    rows, records, wrong = case.batch.responses, case.batch.records, ~case.agreeing_gradients
    other_sign, has_rest = (
        case.any(wrong & (np.sign(wanted) != np.sign(ours))),
        case.any(rest != 0.0),
    )
    loud = (np.abs(policy) <= case.tokens.spread(0.1 * case.quiets)) & case.loud(rest)
    alone, off_alone = case.count(loud), case.any(loud & ~case.near(wanted, rest))
    touched, filled = largest(wrong, rows) > 0.0, records.sum((rows.lengths > 0).astype(np.int64))
    seen, count, differing = case.loud(ours, 3.0), case.count(wrong), _differing(case)
    named = _named(case, seen & ~case.loud(wanted), seen)
    for at in places(left):
        stages = ("ratio", "surrogate", "input", "advantage", *factors.everywhere(case))
        start, words = int(records.starts[at]), f"{differing[at]} differ"
        some = places(touched[start : start + int(records.lengths[at])])
        if len(some) < filled[at]:
            listed = ", ".join(map(str, some[:5])) + (", …" if len(some) > 5 else "")
            words += f", in response{'' if len(some) == 1 else 's'} {listed}"
        words += ", by a factor that differs from token to token" if count[at] > 1 else ""
        if named[at]:
            words += f", and yours are 0 exactly at {named[at]}"
            stages = ("mask", "tokens", *stages, "kl")
        elif has_rest[at] and (not alone[at] or off_alone[at]):
            stages = (*stages, "kl")
        elif has_rest[at]:
            words += f"; they agree at the {int(alone[at]):,} tokens where the policy term is "
            words += "clipped and the KL alone counts"
        words += "" if other_sign[at] else "; the signs agree"
        yield at, (words, *dict.fromkeys(stages))


_TESTS: Sequence[Callable[[Case, Flags], Iterator[Found]]] = (
    _recorded,
    _of_values,
    _outside,
    _without_gradient,
    factors.by_one_factor,
    partial(_in_one_place, exactly=True),
    _without_some,
    factors.by_cells,
    factors.by_advantage,
    partial(_in_one_place, exactly=False),
    _by_token,
)
"""Those that leave the least open first."""
