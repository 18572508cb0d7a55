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
    if case.has_unused_reference and "kl" not in stages:
        stages = (*stages, "kl")
    return Located(f"{words}{LOOK}{_listed(case, stages)}", stages)


def _listed(case: Case, stages: Sequence[str]) -> str:
    """Joins what stages are called in a sentence; a surrogate without bounds has no clip."""
    called = {**_OF_STAGES}
    if case.objective.surrogate.choice.window is None:
        called["surrogate"] = "the surrogate"
    known = [called[stage] for stage in dict.fromkeys(stages) if stage in called]
    return " or ".join(filter(None, [", ".join(known[:-1]), *known[-1:]]))


Found = tuple[int, Located | tuple[str, ...]]
"""A record, and where its numbers differ, or words and stages of that."""


def _any(case: Case, tokens: Flags) -> Flags:
    """[M] whether any token of a record is one of some, [N]."""
    found: Flags = largest(tokens, case.tokens) > 0.0
    return found


def _count(case: Case, tokens: Flags) -> I64:
    """[M] how many tokens of a record are some, [N]."""
    return case.tokens.sum(tokens.astype(np.int64))


def _loud(case: Case, gradient: F64, times: float = 1.0) -> Flags:
    """[N] the gradients that are larger than what is 0 but for rounding, or a multiple of that."""
    found: Flags = np.abs(gradient) > case.tokens.spread(times * case.quiets)
    return found


def _gradients(case: Case) -> tuple[F64, F64]:
    """[N] yours, and the computed ones."""
    assert case.gradient is not None
    return case.gradient, case.breakdown.gradient


def _differing(case: Case) -> list[str]:
    """[M] how many gradients differ, in words."""
    counts = _count(case, ~case.agreeing_gradients).tolist(), case.tokens.lengths.tolist()
    return [f"{wrong:,} of {of:,} gradients" for wrong, of in zip(*counts, strict=True)]


def _places(records: Flags) -> list[int]:
    found: list[int] = np.flatnonzero(records).tolist()
    return found


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
        for at in _places(left & (wrong > 0)):
            words = f"{int(wrong[at]):,} of {int(column.counts[at]):,} {column.key} already differ"
            if alike[at]:
                words += f", by one factor: yours are the computed ones times {scale[at]:.5g}"
            if case.gradient is not None and not _any(case, ~case.agreeing_gradients)[at]:
                words += ", though the gradient agrees"
            yield at, Located(words, (stage, *near))


def _of_values(case: Case, left: Flags) -> Iterator[Found]:
    """Says what is known of records without gradients."""
    for at in _places(left & ((case.tokens.lengths == 0) | (case.gradient is None))):
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
    for at in _places(left & ~_any(case, ~case.agreeing_gradients)):
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
    for at in _places(left & (there > 0)):
        words = f"{int(there[at]):,} of {int(count[at]):,} masked tokens have a gradient"
        yield at, Located(f"{words}; look at the mask", ("mask", "kl", "input"))


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


def _of_others(case: Case, there: Flags) -> list[tuple[str, ...]]:
    """[M] the stage of the KL, where it has a gradient at some of these tokens, [N]."""
    heard = _any(case, there & _loud(case, case.without_policy.gradient))
    return [("kl",) if one else () for one in heard.tolist()]


_NOTHING = 1e-6
"""A term whose factor is at most this is not there."""


def _by_one_factor(case: Case, left: Flags) -> Iterator[Found]:
    (policy, rest), (wanted, ours) = _parts(case), _gradients(case)
    for at in _places(left & ~_any(case, _loud(case, wanted))):
        words = "all of your gradients are 0"
        yield at, (words, "advantage", "loss", "mask", "ratio", "surrogate")
    for at in _places(left & ~_any(case, ours != 0.0)):
        yield at, ("all computed gradients are 0, and yours are not", "advantage", "mask")
    both = _any(case, _loud(case, rest)) & _any(case, _loud(case, policy))
    cut, has_rest = case.tokens, _any(case, rest != 0.0)
    factor = cut.sum(ours * wanted) / cut.sum(ours * ours)
    times = cut.spread(factor)
    alone = ~both | ~_any(case, ~case.near(times * policy + rest, wanted))
    for at in _places(left & ~_any(case, ~case.near(times * ours, wanted))):
        words = "all gradients differ by one factor: yours are the computed ones times "
        more = () if not alone[at] else ("advantage", "kl") if has_rest[at] else ("advantage",)
        stages = ("aggregate", *more, *_everywhere(case), "mask", "loss")
        yield at, (f"{words}{factor[at]:.5g}", *dict.fromkeys(stages))
    if not (left & both).any():
        return
    square = cut.sum(policy * policy)  # a·policy + b·rest by least squares
    other = rest - cut.spread(cut.sum(policy * rest) / square) * policy
    b = cut.sum(other * wanted) / cut.sum(other * other)
    a = cut.sum(policy * (wanted - cut.spread(b) * rest)) / square
    fits = case.near(cut.spread(a) * policy + cut.spread(b) * rest, wanted)
    for at in _places(left & both & ~_any(case, ~fits)):
        yield at, _by_two_factors(case, float(a[at]), float(b[at]))


def _by_two_factors(case: Case, a: float, b: float) -> tuple[str, ...]:
    """Words and stages where the policy term is a times, and the others b times the computed."""
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


_Cut = tuple[I64, Flags | bool]
"""[N] the cell of each token, none of two records; and [M] the records that are cut so."""


def _signs(case: Case) -> _Cut:
    return 2 * case.tokens.index + (case.breakdown.advantage > 0), True


def _groups(case: Case) -> _Cut:
    batch = case.batch
    firsts = np.unique(batch.groups, return_index=True)[1]
    several = np.bincount(batch.records.index[firsts], minlength=len(case.records)) > 1
    return batch.responses.spread(batch.groups), several


def _trajectories(case: Case) -> _Cut | None:
    found = case.batch.trajectories
    return None if found is None else (case.batch.responses.spread(found), True)


def _turns(case: Case) -> _Cut | None:
    if case.batch.turn_ids is None and case.batch.trajectories is None:
        return None
    order = Inputs(case.batch).get("turn_order")
    spread = order.turns.spread
    return spread(np.arange(order.turns.count)), _any(case, spread(order.number > 0))


def _after(case: Case) -> _Cut:
    """The tokens by their positions from the end of their responses."""
    responses = case.batch.responses
    after = responses.spread(responses.lengths) - 1 - responses.positions
    return case.tokens.spread(case.tokens.starts) + after, True


_POLICY = ("advantage", "aggregate")
_CELLS: Sequence[tuple[str, Callable[[Case], _Cut | None], tuple[str, ...]]] = (
    ("sign of the advantage", _signs, ("surrogate", "advantage")),
    ("group", _groups, _POLICY),
    ("trajectory", _trajectories, _POLICY),
    ("response", lambda case: (case.batch.responses.index, True), _POLICY),
    ("turn", _turns, (*_POLICY, "ratio")),
    ("position from the end", _after, ("advantage", "mask")),
)
"""By what tokens may have one factor, and the stages that then made it."""


def _by_cells(case: Case, left: Flags) -> Iterator[Found]:
    """Looks for the coarsest cut of the tokens in which each part has one factor."""
    (policy, rest), (wanted, ours) = _parts(case), _gradients(case)
    both = _any(case, _loud(case, rest))
    for name, cells, own in _CELLS:
        if (cut := cells(case)) is None:
            continue
        tried: Sequence[tuple[str, F64, F64, tuple[str, ...]]] = (
            ("the policy term differs", wanted - rest, policy, (*own, *_everywhere(case))),
            ("the gradients, with the KL's, differ", wanted, ours, ("aggregate", "mask")),
            ("the KL differs", wanted - policy, rest, ("kl", "mask")),
        )
        for number, (words, yours, computed, stages) in enumerate(tried):
            asked = left & cut[1] & (both | (number == 0))
            if not asked.any():
                continue
            factors = _factors(case, cut[0], yours, computed)
            for at in _places(asked & factors.fit):
                of = words if both[at] else "the gradients differ"
                values = _numbers(factors.of(at))
                yield at, (f"{of} by one factor per {name} ({values})", *dict.fromkeys(stages))


class _Factors(NamedTuple):
    """The factors of cells.

    Attributes:
        fit: [M] whether each cell of a record has a single one.
        values: [cells] the factors, NaN where none shows.
        records: [cells] the record of each.
    """

    fit: Flags
    values: F64
    records: I64

    def of(self, at: int) -> F64:
        """Those of a record."""
        return self.values[self.records == at]


def _factors(case: Case, cells: I64, wanted: F64, ours: F64) -> _Factors:
    """What the numbers of each cell are multiplied by."""
    count, cut, loud = int(cells.max()) + 1, case.tokens, _loud(case, ours, 3.0)
    records = np.full(count, -1)
    records[cells] = cut.index
    square, heard = np.bincount(cells, ours * ours), np.bincount(cells, loud)
    enough = heard > 0
    found = np.where(enough, np.bincount(cells, ours * wanted) / np.where(enough, square, 1.0), 1.0)
    other = enough & (np.abs(found - 1.0) > 1e-3)
    known, others, heard_others = (
        np.bincount(records + 1, of, cut.count + 1)[1:] for of in (enough, other, other * heard)
    )
    room = max(case.tolerance.rtol, 1e-6) * largest(np.abs(case.gradient), cut)  # type: ignore[arg-type]
    near = np.abs(found[cells] * ours - wanted) <= cut.spread(room)
    fit = (known > 0) & (_count(case, loud) >= 2 * known) & ~_any(case, ~near)
    fit &= heard_others >= 2 * others  # a factor that one token alone shows is none
    return _Factors(fit, np.where(enough, found, np.nan), records)


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


def _in_one_place(case: Case, left: Flags, *, exactly: bool) -> Iterator[Found]:
    """Looks for a place that has all tokens that differ; or has them, and none that agree."""
    wanted, ours = _gradients(case)
    wrong, seen = ~case.agreeing_gradients, _loud(case, ours)
    count, lost = _count(case, wrong), ~_any(case, wrong & _loud(case, wanted))
    others, differing = _of_others(case, wrong), _differing(case)
    for words, where, stages in _PLACES:
        there = where(case)
        fits = _any(case, there) & ~_any(case, wrong & ~there) & _any(case, seen & ~there & ~wrong)
        if exactly:
            fits &= ~_any(case, there & seen & ~wrong)
        else:
            share = _count(case, there) / np.maximum(case.tokens.lengths, 1)
            fits &= share**count <= _CHANCE
        for at in _places(left & (count > 0) & fits):
            only = "exactly" if exactly else "only among"
            how = ", where yours are 0" if lost[at] else ""
            more = (*others[at], *(("mask", "tokens") if lost[at] else ()))
            named = f"{differing[at]} differ, {only} {words}{how}"
            yield at, (named, *dict.fromkeys((*stages, *more)))


def _without_some(case: Case, left: Flags) -> Iterator[Found]:
    """Looks for tokens without gradient, where one factor, or one per response, gives the others.

    Where these are whole responses they may have no advantage; else they are masked or rejected.
    """
    wanted, ours = _gradients(case)
    rows, seen = case.batch.responses, _loud(case, ours, 3.0)
    lost = seen & ~_loud(case, wanted)
    kept = seen & ~lost
    asked = left & _any(case, lost) & (_count(case, kept) >= 3)
    if not asked.any():
        return
    yours, others = np.where(lost, 0.0, wanted), np.where(lost, 0.0, ours)
    one = _factors(case, case.tokens.index, yours, others)
    each = _factors(case, rows.index, yours, others)
    torn = largest((largest(lost, rows) > 0.0) & (largest(kept, rows) > 0.0), case.batch.records)
    counts, of_all = _count(case, lost), _count(case, seen)
    named, clipped, kl = (
        _named(case, lost, seen),
        _are_clip(case, lost, kept),
        _of_others(case, lost),
    )
    for at in _places(asked & (one.fit | each.fit)):
        of = "one factor" if one.fit[at] else "one factor per response"
        factors = (one if one.fit[at] else each).of(at)
        alike = bool(np.nanmax(np.abs(factors - 1.0)) <= 1e-3)
        rest = "the others agree" if alike else f"the others differ by {of} ({_numbers(factors)})"
        where = "single tokens" if torn[at] else "whole responses"
        where = f"exactly {named[at]}" if named[at] else where
        stages = (("surrogate",) if clipped[at] else ()) + kl[at]
        stages += ("mask", "tokens", "advantage")
        stages += _everywhere(case) + (() if alike else ("aggregate",))
        words = f"{int(counts[at]):,} of {int(of_all[at]):,} gradients are 0 ({where}), and {rest}"
        yield at, (words, *dict.fromkeys(stages))


def _named(case: Case, lost: Flags, seen: Flags) -> list[str]:
    """[M] the place that has all of some tokens of those that are seen, and no others; or ""."""
    found, some = [""] * len(case.records), _any(case, lost)
    for words, where, _ in _PLACES:
        for at in _places(some & ~_any(case, seen & (where(case) != lost))):
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


def _by_advantage(case: Case, left: Flags) -> Iterator[Found]:
    """Looks for one advantage per response that gives all gradients, with another sign or for 0."""
    own, found = case.breakdown.response_advantage, case.effective_advantages
    if own is None or found is None:
        return
    rows, records = case.batch.responses, case.batch.records
    room = 1e-3 * largest(np.abs(own), records)
    other = np.isfinite(found) & (np.abs(found - own) > records.spread(room))
    count = records.sum(other.astype(np.int64))
    long = largest(other & (rows.lengths >= 3), records) > 0.0
    for at in _places(left & long & case.other_advantages):
        start = int(records.starts[at])
        first = int(np.argmax(other[start:]))
        words = (
            f"one advantage per response gives the gradients: {int(count[at]):,} of "
            f"{int(records.lengths[at]):,} differ (response {first} has "
            f"{found[start + first]:.5g} instead of {own[start + first]:.5g})"
        )
        yield at, (words, "advantage")


def _by_token(case: Case, left: Flags) -> Iterator[Found]:
    """Says what is left: each token has a factor of its own, or the KL adds one."""
    (policy, rest), (wanted, ours) = _parts(case), _gradients(case)
    rows, records, wrong = case.batch.responses, case.batch.records, ~case.agreeing_gradients
    other_sign, has_rest = (
        _any(case, wrong & (np.sign(wanted) != np.sign(ours))),
        _any(case, rest != 0.0),
    )
    loud = (np.abs(policy) <= case.tokens.spread(0.1 * case.quiets)) & _loud(case, rest)
    alone, off_alone = _count(case, loud), _any(case, loud & ~case.near(wanted, rest))
    touched, filled = largest(wrong, rows) > 0.0, records.sum((rows.lengths > 0).astype(np.int64))
    seen, count, differing = _loud(case, ours, 3.0), _count(case, wrong), _differing(case)
    named = _named(case, seen & ~_loud(case, wanted), seen)
    for at in _places(left):
        stages = ("ratio", "surrogate", "input", "advantage", *_everywhere(case))
        start, words = int(records.starts[at]), f"{differing[at]} differ"
        some = _places(touched[start : start + int(records.lengths[at])])
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
    _by_one_factor,
    partial(_in_one_place, exactly=True),
    _without_some,
    _by_cells,
    _by_advantage,
    partial(_in_one_place, exactly=False),
    _by_token,
)
"""Those that leave the least open first."""
