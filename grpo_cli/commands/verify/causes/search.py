"""The search for causes: what explains everything that is expected, the simplest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from grpo_cli.commands.verify.causes import (
    advantages,
    choices,
    clips,
    denominators,
    inputs,
    kl,
    masks,
    tokens,
    turns,
)
from grpo_cli.commands.verify.causes.case import IMPOSSIBLE, Case, Cause, Source
from grpo_cli.objective.objective import Objective

MOST = 4
"""Causes named, where several explain a record equally well."""


TIERS: Sequence[Sequence[tuple[Source, int]]] = (
    ((denominators.negative, 3),),
    (
        (denominators.named_factors, 1),
        (masks.masks, 2),
        (turns.trajectories, 2),
        (turns.credit, 2),
        (tokens.edges, 3),
        (tokens.solved_tokens, 1),
        (advantages.formulas, 2),
        (advantages.changed, 3),
        (advantages.other_sign, 3),
        (choices.ratios, 3),
        (clips.clips, 3),
        (clips.windows, 1),
        (clips.reinforce, 3),
        (clips.weights, 3),
        (kl.penalties, 3),
        (choices.corrections, 2),
        (choices.entropies, 2),
        (choices.neutral, 1),
        (denominators.denominators, 2),
        (denominators.micro_batches, 1),
    ),
    (
        (masks.misplaced_masks, 3),
        (inputs.columns, 2),
        (inputs.bases, 2),
        (inputs.exchanged, 1),
        (kl.estimates, 2),
        (advantages.other_eps, 1),
        (advantages.other_groups, 2),
        (advantages.whitened, 2),
        (advantages.solved_changes, 1),
        (advantages.discounted, 1),
        (clips.caps, 1),
        (clips.solved_cap, 1),
        (choices.weights, 2),
        (choices.clamped, 1),
        (kl.reductions, 1),
        (denominators.of_the_kl, 1),
        (kl.clamped, 1),
        (kl.strength, 3),
        (kl.policy_strength, 1),
        (inputs.temperatures, 1),
    ),
    ((kl.weights_and_denominators, 2), (kl.any_strength, 1)),
    ((denominators.separate_factors, 1), (denominators.whole_factor, 3)),
    ((choices.any_choice, 1),),
)
"""Sources of causes, and how many of each are named where several fit.

A tier is tried where nothing in those before it explains the record at the digits recorded."""

DIGITS = 1e-5
"""What float32 leaves of a trainer's numbers, as a relative tolerance."""

SURE = 1.5e-6
"""What it leaves of a loss; many mistakes come near to one number, so nothing worse is believed."""

BY_CHANCE = 0.1
"""Where more mistakes than that are expected to give a lone loss by chance, none is named."""

FITS = 1e-4
"""What an answer to another record may leave here."""

BETTER = 10.0
"""A cause that fits so many times better than another explains what the other misses."""


def causes(case: Case) -> list[Cause]:
    """Returns what explains all that the record expects; empty where no known mistake does.

    Of several that fit, those that fit best by orders of magnitude, the simplest first.
    """
    fitting: dict[str, tuple[float, Cause]] = {}
    losses: list[float] = []
    alone = max(SURE, case.rounding) if case.is_loss_alone else 0.0
    for number, tier in enumerate(TIERS):
        worst = alone if alone and number else np.inf
        for source, most in tier:
            fits = ((misfit(cause, case, losses), cause) for cause in _possible(case, source))
            found = islice(
                ((off, cause) for off, cause in fits if off <= worst and np.isfinite(off)), most
            )
            fitting |= {
                cause.words: (off, cause) for off, cause in found if cause.words not in fitting
            }
        if any(off <= max(DIGITS, alone) for off, _ in fitting.values()):
            break
    if fitting and case.is_loss_alone and matches_by_chance(case, losses) > BY_CHANCE:
        return []
    least = min((off for off, _ in fitting.values()), default=0.0)
    enough = max(DIGITS, BETTER * least)
    best = [cause for off, cause in fitting.values() if off <= enough]
    if any(cause.mistake == "accumulation-missing" for cause in best):  # counts times its steps
        best = [cause for cause in best if cause.mistake != "accumulation-twice"]
    return best[:MOST]


def _possible(case: Case, source: Source) -> Iterator[Cause]:
    """Yields the causes of a source, until it can make no more of this record."""
    try:
        yield from source(case)
    except IMPOSSIBLE:
        return


def misfit(cause: Cause, case: Case, losses: list[float] | None = None) -> float:
    """How far off the record is with this mistake; infinite where it does not agree.

    Args:
        cause: the mistake.
        case: the record.
        losses: gets the objective that the mistake gives.
    """
    try:
        again = cause.evaluate(case)
        if losses is not None:
            losses.append(float(again.record_objective[0]))
        return case.misfit(again)
    except IMPOSSIBLE:
        return np.inf  # the record cannot be read so


def matches_by_chance(case: Case, losses: Sequence[float]) -> float:
    """Counts the mistakes that are expected to give the one number of a record by chance.

    It is how many of those tried give a number within a quarter of it, times the share of that
    stretch that its digits leave open.
    """
    if not case.loss:
        return 0.0
    size, room = abs(case.loss), max(case.loss_room, SURE * abs(case.loss))
    off = np.unique(np.round((np.array(losses) - case.loss) / (1e-9 * size))) * 1e-9 * size
    around = int(((np.abs(off) > room) & (np.abs(off) <= 0.25 * size + room)).sum())
    return around * room / (0.25 * size)


# ---- over many records: what explained one is tried first on the next ---------------------------

_KEPT = 3
"""Answers remembered."""

_COUNTS = "num_items_in_batch"
"""Differs from record to record of one run, and is in no answer."""

Key = tuple[object, ...]


class Memory:
    """Remembers the answers to the records before; searches a number of them from the beginning.

    What is found depends on the order of the records and on nothing else.

    Args:
        most: records that may be searched; later ones are only tried against known answers.

    Attributes:
        left_out: records that were not searched, since ``most`` had been.
    """

    def __init__(self, most: int) -> None:
        self._left = most
        self._known: list[tuple[Key, list[Cause]]] = []
        self.left_out = 0

    def causes(self, case: Case) -> list[Cause] | None:
        """Says why a record differs; empty where nothing explains it, None where not searched."""
        key = _key(case.objective)
        for at, (of, known) in enumerate(self._known):
            fitting = [cause for cause in known if of == key and misfit(cause, case) <= FITS]
            if fitting:
                self._known.insert(0, self._known.pop(at))
                return fitting
        if self._left <= 0:
            self.left_out += 1
            return None
        self._left -= 1
        found = causes(case)
        if found:
            self._known = [(key, found), *self._known][:_KEPT]
        return found


def _key(objective: Objective) -> Key:
    """The stages and their values: an answer to other ones would be worded otherwise."""
    return tuple(
        (stage, bound.name, *(pair for pair in bound.values.items() if pair[0] != _COUNTS))
        for stage, bound in objective.stages.items()
    )


# ---- what is known where no cause explains the difference ---------------------------------------

Where = Callable[[Case], NDArray[np.bool_]]


_PLACES: tuple[tuple[str, Where], ...] = (
    ("the clipped tokens", lambda case: case.breakdown.clip != 0),
    ("the tokens that are not clipped", lambda case: case.breakdown.clip == 0),
    ("the last token of each response", tokens.last),
    ("the first token of each response", tokens.first),
    ("the tokens with A > 0", lambda case: case.breakdown.advantage > 0),
    ("the tokens with A < 0", lambda case: case.breakdown.advantage < 0),
    ("the tokens with a ratio above 1", lambda case: case.breakdown.ratio > 1.0),
    ("the tokens with a ratio below 1", lambda case: case.breakdown.ratio < 1.0),
)


def pattern(case: Case) -> str:
    """Describes in one line where the gradients differ; "" where only a number is known."""
    wanted, ours = case.gradient, case.breakdown.gradient
    if wanted is None or not len(ours):
        hint = "one loss fits many mistakes: record loss_gradient as well to narrow them down"
        return hint + _ratio(case) if case.is_loss_alone and case.loss is not None else ""
    wrong = ~case.near(wanted, ours)
    if not wrong.any():
        return (
            "the gradient agrees: only values differ (a constant, or a term without gradient)"
            + (_ratio(case))
        )
    count = int(wrong.sum())
    parts = [f"{count:,} of {len(wrong):,} gradients differ", *_where(case, wrong)]
    parts += _how(case, wrong)
    return ", ".join(parts)


def _ratio(case: Case) -> str:
    ours = float(case.breakdown.record_objective[0])
    factor = case.loss / ours if case.loss and ours else 0.0
    readable = 1e-9 < abs(factor) < 1e9
    return f", your loss is grpo's times {factor:.5g}" if readable else ""


def _where(case: Case, wrong: NDArray[np.bool_]) -> Iterator[str]:
    responses = case.batch.responses
    rows = np.unique(responses.index[wrong])
    filled = int((responses.lengths > 0).sum())
    if len(rows) < filled:
        some = ", ".join(map(str, rows[:5].tolist())) + (", …" if len(rows) > 5 else "")
        yield f"in response{'' if len(rows) == 1 else 's'} {some}"
    seen = case.near(0.0 * case.breakdown.gradient, case.breakdown.gradient)
    for words, where in _PLACES:
        there = where(case)
        if there.any() and not there.all() and bool((there | ~wrong).all()):
            yield ("exactly " if bool((wrong | ~there | seen).all()) else "only among ") + words
            return


def _how(case: Case, wrong: NDArray[np.bool_]) -> Iterator[str]:
    """Whether one factor makes the wrong ones right."""
    assert case.gradient is not None
    wanted, ours = case.gradient[wrong], case.breakdown.gradient[wrong]
    if not np.abs(wanted).max() > case.quiet:
        yield "where yours are 0"
        return
    square = float(ours @ ours)
    if not square:
        yield "where grpo's are 0"
        return
    factor = float(ours @ wanted) / square
    if case.near(factor * ours, wanted).all():
        yield f"by a constant factor: yours are grpo's times {factor:.5g}"
