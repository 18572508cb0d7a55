"""Which conventions reproduce a number that a trainer logged?

Every row of the table of variants is tried unmodified, and with one or two changes: another
advantage, ratio, clip, KL or denominator; each with the other sign and the factors of accumulation
and data parallelism. β is solved for if none is given, the usual ε are tried if the plain search
leaves the number unexplained, and any ε or β of the unmodified rows if these do as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from grpo_cli.commands.match.fit import Factor, factors_of
from grpo_cli.commands.match.logged import agrees, all_agree, common_means, means_of, others_of
from grpo_cli.commands.match.question import ROUNDING, LoggedNumber, Question
from grpo_cli.commands.match.run import (
    ALIKE,
    MANY,
    RARE,
    Candidate,
    Families,
    Run,
    entries,
)
from grpo_cli.commands.match.settings import add_requirements, with_setting
from grpo_cli.commands.match.space.changes import LENGTH, LENGTHS, Change
from grpo_cli.commands.match.space.options import Sample
from grpo_cli.commands.match.space.space import Builder, Depth, Index, known
from grpo_cli.commands.match.sums import Sums
from grpo_cli.variants.plan import Plan

_FAR = 12.0
"""Bits beyond a sure convention's from which on another one is not named."""
_PLAINER = 6.0
"""Bits from which on a solved length is named in place of what is no chance either, and beyond
which another value is not."""
_EXACT = 1e-4
"""Hits by chance from which on ε and β are solved for: a sum in float32 may be what came near."""
_LARGE = 1 << 18
"""Tokens from which the search begins with what is quickly evaluated."""
_MOST_WORK = {Depth.QUICK: math.inf, Depth.PLAIN: 4e6, Depth.WIDE: 2e6}
"""Tokens up to which conventions are searched: half a minute's work each."""
TOO_LARGE = "large input"
_NOT_SEARCHED = {
    Depth.QUICK: "only the ratio and the surrogate of each variant were tried",
    Depth.PLAIN: "no other ε, and no β in the reward, was tried",
}


def search(
    questions: Sequence[Question], base: Plan, betas: Sequence[float] = (), recorded: str = ""
) -> Run:
    """The conventions that give every number on its data.

    The more there is to evaluate, the less is searched.

    Args:
        questions: the numbers; the last one's data is searched, the others narrow what is found.
        base: what the flags ask for; stages that flags swap stay fixed.
        betas: values of β to try; none: the given one, or it is solved for.
        recorded: the row that the records name; "" for none.
    """
    counts = (sum(x.batch.group_count for x in one.data.chunks) for one in questions)
    builder = Builder(base, Sample(questions[0], recorded), betas, groups=max(counts) > 1)
    sums = Sums(builder.options, questions[-1].data)
    work = questions[-1].data.work  # the others only narrow what it leaves
    given = known(base, questions[0].first)
    settled = "epsilon" in given and ("beta" in given or bool(betas))
    depths = [depth for depth in Depth if work <= _MOST_WORK[depth]]
    if work <= _LARGE:
        depths.remove(Depth.QUICK)
    for depth in depths:
        enough = depth is Depth.PLAIN and settled
        run = Run(builder.space(depth), factors_of(base, questions[-1].first), sums)
        _ask(run, questions, recorded, last=enough or depth is depths[-1])
        if run.sure or enough:
            return run
    if depths[-1] is not Depth.WIDE:
        text = f"{_NOT_SEARCHED[depths[-1]]}; --where selects fewer records"
        run.reasons[TOO_LARGE] = text
    return run


def _ask(run: Run, questions: Sequence[Question], recorded: str, *, last: bool) -> None:
    """Asks one space; what only chance gives is confirmed by the last search alone."""
    first, space = questions[-1].first, run.space
    *others, decisive = questions
    run.ask(decisive)
    for question in others:
        run.narrow(question)
    found = [*run.candidates()]
    families = Families(first, space)
    solved = with_length(run, questions[0].target, families) if len(questions) == 1 else ()
    lengths = [*solved]
    needed = last or lengths or any(question.others for question in questions)
    if not needed and all(one.chance >= RARE for one in found):
        run.close()
        return
    run.unmodified = run.rows(recorded)
    rows = [one for one in run.unmodified[1:] if one is not None]
    run.matches = _confirm(run, questions, found, rows)
    most = run.matches[0].bits - _PLAINER if run.sure else math.inf
    if lengths := [one for one in lengths if one.bits < most]:
        run.matches = _confirm(run, questions, lengths, ()) or run.matches
    chance = run.matches[0].chance if run.matches else math.inf
    if (last or run.sure) and not chance < _EXACT and len(questions) == 1:
        solved = with_setting(run, questions[0].target, Families(first, space))
        most = run.matches[0].bits if run.sure else math.inf
        windows = [one for one in solved if one.bits < most and not one.chance >= chance]
        run.matches = _confirm(run, questions, windows, ()) or run.matches
    if not run.reproduced:
        run.matches.sort(key=lambda one: (one.bits // ALIKE, abs(one.difference)))
    if not run.matches:
        run.nearest = evaluate_candidates(questions[-1], run.near(Families(first, space)))
        if len(questions) == 1:
            add_requirements(run, questions[0])
    run.matches = [_nearest_eps(one, questions[-1]) for one in run.matches]
    pairs = zip(entries(run.matches), run.matches, strict=True)
    run.matches = [one for _, one in sorted(pairs, key=lambda pair: (pair[0], pair[1].bits))]
    run.close()


def _confirm(
    run: Run,
    questions: Sequence[Question],
    found: list[Candidate],
    rows: Sequence[Candidate],
) -> list[Candidate]:
    """Those that ``grpo eval`` confirms, with its numbers of the last question.

    What a scan has found gives all the losses; the other numbers are compared here. A logged
    KL may be any usual mean of it, where no convention has it as its own.

    Args:
        run: found them.
        questions: the numbers.
        found: candidates.
        rows: candidates that get their numbers in the same pass, and are not listed.
    """
    kept, like = found, found
    *before, last = questions
    for question in before:
        if question.others:
            confirmed = evaluate_candidates(question, like)
            like = [one for one in confirmed if agrees(one, question)]
            kept = [one for one in kept if one in like and all_agree(one, question)]
    confirmed = evaluate_candidates(last, [*found, *rows])
    giving = [one for one in confirmed if one not in rows and _gives(one, last)]
    like = [one for one in giving if one in like and agrees(one, last)]
    matches = [one for one in like if one in kept and all_agree(one, last)]
    if giving and not matches:
        means = [*map(means_of, questions)]
        fits = common_means(questions, means)
        matches = like if fits else []
        first = (matches or giving)[0]
        if first.chance < RARE:
            run.others = others_of(first, last, means[-1], fits)
            run.loss_alone = None if matches else first
    if any(question.others for question in questions):
        for one in matches:
            one.chance *= len(matches) / (len(found) + 1)
    return without_chance(matches, last.target)


def evaluate_candidates(question: Question, found: Sequence[Candidate]) -> list[Candidate]:
    """The candidates with their numbers on a question's records, of those that can be evaluated."""
    kept = []
    for one in found:
        total = question.data.totals(one.plan)
        if total is not None and math.isfinite(total.objective):
            one.totals = total
            one.value = one.times * (question.target.sign * total.objective) + 0.0
            one.difference = one.value - question.target.value
            kept.append(one)
    return kept


def _nearest_eps(first: Candidate, question: Question) -> Candidate:
    """A convention by that of its rows whose eps gives the digits of the number best.

    Its own plan, unless another one halves what it is off by.
    """
    if abs(first.difference) <= question.target.half + ROUNDING * first.size:
        return first
    named = [(first.plan, first.factor, first.rows or [first.plan.variant])]
    others = [
        replace(first.as_row(row), rows=[*dict.fromkeys([row, *first.rows])]) for row in first.rows
    ]
    for plan, factor, _ in first.also:
        others.append(replace(first, plan=plan, factor=factor, rows=[], also=named + first.also))
    found = evaluate_candidates(question, others)
    best = min(found, key=lambda one: abs(one.difference), default=first)
    return best if abs(best.difference) <= 0.5 * abs(first.difference) else first


def _gives(one: Candidate, question: Question) -> bool:
    """Whether a candidate that was evaluated gives the question's number."""
    return abs(one.difference) <= question.target.half + question.target.noise * one.size


def without_chance(found: Sequence[Candidate], target: LoggedNumber) -> list[Candidate]:
    """The candidates; if the first is sure, without those that it makes implausible.

    Those are of other digits where chance gives some, or cost far more than the first: of another
    value, so much that the first is 64 times as likely.
    """
    if not found or not found[0].chance < RARE:
        return [*found]
    least = min(one.bits for one in found)
    near = [target.half + 1e-12 * max(abs(one.value), one.size) for one in found]
    return [
        one
        for one, room in zip(found, near, strict=True)
        if (one.chance <= 1.0 or abs(one.difference) <= room)
        and one.bits - least
        <= (_FAR if abs(one.value - found[0].value) <= 1e-12 * one.size else _PLAINER)
    ]


# ---- the constant length of a denominator --------------------------------------------------------

_LONGEST = 1e6
"""The longest L."""
_UNUSUAL, _FLIPPED = 7.0, 2.0
"""Bits that L costs beyond those of a usual one, and of the other sign."""
_PLAIN_LENGTH = 12.0
"""Bits of a convention with a usual L, at most."""
_LISTED = 12


def with_length(run: Run, target: LoggedNumber, families: Families) -> Iterator[Candidate]:
    """Yields conventions that give the number with an integer L, the likeliest first.

    The chance of each is how many as plain come so near to the number with an integer; what chance
    may well give is left out.
    """
    some = _conventions(run)
    if not target.value or not len(some):
        return
    number, size = run.scan.every[some], run.scan.values.size[run.scan.value_of(some)]
    exact = np.abs(number * LENGTHS[0] / target.value)
    exact = np.where((exact >= 0.5) & (exact <= _LONGEST), exact, np.nan)
    length = np.maximum(np.round(exact), 1.0)
    off = np.abs(exact / length - 1.0)
    bits = run.space.bits[some] + _UNUSUAL + np.where(number * target.value < 0.0, _FLIPPED, 0.0)
    once = np.unique(np.round(np.log(exact), 9), return_index=True)[1]
    exactly = target.rtol + ROUNDING + 0.0 * exact
    listed = 0
    for room in (exactly, exactly + target.noise * size / np.abs(number)):
        share = np.nan_to_num(np.minimum(2.0 * room * exact, 1.0))[once]
        for at in sorted(np.flatnonzero(off <= room).tolist(), key=lambda at: float(bits[at])):
            chance = float(share[bits[once] <= bits[at]].sum())
            if chance >= MANY or listed == _LISTED:
                break
            plan = run.space.plan(int(some[at]), Change({}, {LENGTH: int(length[at])}))
            factor = Factor(float(np.sign(number[at] * target.value)))
            one = Candidate(plan, factor, float(bits[at]), chance=chance)
            one.size = float(size[at] * LENGTHS[0] / length[at])
            if families.add(one):
                listed += 1
                yield one
        if listed:
            return


def _conventions(run: Run) -> Index:
    """The plain conventions with one of the usual L in all of J, the plainest first."""
    space = run.space
    known = [dict(key[1]) for key in space.options.weights.numbers]  # type: ignore[index]
    counts = np.array([values.get(LENGTH) == LENGTHS[0] for values in known])
    some = np.flatnonzero(counts[space.weight] & (space.bits <= _PLAIN_LENGTH))
    alone = np.array([one.kl_weight < 0 and one.entropy < 0 for one in space.grids])
    number = run.scan.every[some]
    some = some[alone[space.grid[some]] & np.isfinite(number) & (number != 0.0)]
    return some[np.argsort(space.bits[some], kind="stable")].astype(np.int32)
