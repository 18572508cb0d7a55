"""The search for causes: what explains everything that is expected, the simplest first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from os import environ
from typing import NamedTuple

import numpy as np

from grpo_cli.commands.verify.causes import (
    advantages,
    choices,
    clips,
    denominators,
    factors,
    inputs,
    kl,
    loss_settings,
    masks,
    statistics,
)
from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.cause import IMPOSSIBLE, STRICT, Cause, Source
from grpo_cli.commands.verify.causes.located import UNKNOWN, Located, located
from grpo_cli.commands.verify.causes.suspects import Suspect
from grpo_cli.objective.breakdown import Breakdown

MOST = 4
"""Causes named, where several explain a record equally well."""


TIERS: Sequence[Sequence[tuple[Source, int]]] = (
    ((factors.negative, 3),),
    (
        (factors.factors, 2),
        (masks.masks, 2),
        (advantages.trajectories, 2),
        (advantages.credit, 2),
        (masks.edges, 3),
        (masks.solved_tokens, 1),
        (statistics.statistics, 3),
        (advantages.changed, 3),
        (choices.ratios, 3),
        (clips.clips, 3),
        (clips.windows, 1),
        (clips.reinforce, 3),
        (clips.weights, 3),
        (kl.penalties, 3),
        (kl.strength, 3),
        (choices.corrections, 2),
        (choices.entropies, 2),
        (choices.neutral, 1),
        (denominators.denominators, 2),
        (denominators.micro_batches, 2),
    ),
    (
        (inputs.columns, 2),
        (inputs.bases, 2),
        (advantages.solved_changes, 1),
        (advantages.discounted, 1),
        (clips.solved_dual, 1),
        (choices.weights, 2),
        (denominators.of_a_term, 2),
        (kl.policy_strength, 1),
        (inputs.temperatures, 1),
    ),
    ((partial(kl.strength, unround=True), 1),),
    ((factors.separate_factors, 1),),
    ((loss_settings.of_loss, 1),),
    ((choices.any_choice, 1),),
)
"""Sources of causes, and how many of each are named where several fit.

A tier is tried where nothing in those before it explains the record at the digits recorded."""

DIGITS = 1e-5
"""What float32 leaves of a trainer's numbers, as a relative tolerance."""

SURE = 1.5e-6
"""What it leaves of a loss; many mistakes come near to one number, so nothing worse is believed."""

BY_CHANCE = 0.05
"""Where more mistakes than that are expected to give a lone loss by chance, none is named."""

PAIRED = 4
"""Settings that a mistake is tried on, of which each may agree by chance."""

FITS = 1e-4
"""What an answer to another record may leave here."""

_IS_SEEN = 5.0
"""How many times what its rounding leaves open a loss is off where a cause shows."""

_COARSE = 1e-3
"""The relative rounding of a loss from which on numbers that fit many records may be chance."""

BETTER = 10.0
"""A cause that fits so many times better than another explains what the other misses."""


class Explained(NamedTuple):
    """What explains a record.

    Attributes:
        where: where it is wrong, whatever the cause is; None where that was not looked for.
        causes: what explains all that it expects, and nothing else that is as simple does.
        possible: what fits as well, but has too little to go by, or only equals what is expected.
    """

    where: Located | None
    causes: Sequence[Cause] = ()
    possible: Sequence[Cause] = ()


_UNDEFINED = Located("your number is NaN or infinite: grpo check looks for what makes it so")


def explained(case: Case) -> Explained:
    """Searches the stages where a record is wrong, then the others, for what explains all of it.

    Of several that fit, those that fit best by orders of magnitude, the most common mistake first.
    Where nothing does, those that the rounding of the log-probs leaves open.
    """
    if not all((np.isfinite(one.values) | ~one.given).all() for one in case.columns):
        return Explained(_UNDEFINED)
    where = located(case)
    found, rounded = _in_stages(case, where), case.rounded
    if not found.causes and case.is_rounded and rounded.rooms_off >= _IS_SEEN:
        again = _in_stages(rounded, where)
        found = again if again.causes or not found.possible else found
    return found._replace(where=where)


def _is_coarse(case: Case) -> bool:
    """Whether numbers that are solved for fit the record, since its rounding leaves so much."""
    return case.is_rounded and case.rounded.rounding > _COARSE


def _in_stages(case: Case, where: Located) -> Explained:
    """What is found in the stages where a record is wrong, or else in the others."""
    found = _searched(case, lambda cause: not where.stages or cause.stage in where.stages)
    if where.stages and not (found.causes or found.possible):
        found = _searched(case, lambda cause: cause.stage not in where.stages)
    if _is_coarse(case):
        found = found._replace(causes=[cause for cause in found.causes if not cause.for_all])
    return found


def paired(cases: Sequence[Case], *, again: bool = False) -> Sequence[Cause]:
    """Searches for a mistake on top of another usual setting, which alone does not explain it.

    Of several records an ε or β that gives all losses with the setting, then, unless some of them
    were searched for it, any common mistake in the last of them. What several losses agree on needs
    no other evidence.
    """
    alone, last = cases[-1].gradient is None, cases[-1]
    several = alone and len(cases) > 1
    more = several and not again if alone else len(cases) < _SOLVED_FROM
    tried: set[str] = set()
    seen: set[Hashable] = set()
    for setting in loss_settings.settings(last, more=more):
        with suppress(*IMPOSSIBLE):
            if (made := _numbers(setting.evaluate(last), alone=alone)) in seen:
                continue
            seen.add(made)
            tried.add(setting.words)
            on_setting = [replace(case, breakdown=setting.evaluate(case)) for case in cases]
            if np.isfinite(last.misfit(on_setting[-1].breakdown)):
                continue
            values = loss_settings.shared(on_setting, on_setting=True)
            shared = [loss_settings.both(setting, one) for one in values]
            if named := [one for one in shared if _explains_all(one, cases)]:
                return named[:1]
            if several and again:
                continue
            other = partial(_is_other, words=tried, simple=several)
            found = _searched(on_setting[-1], other, TIERS[:2], BY_CHANCE / PAIRED)
            fitting = [*found.causes, *(found.possible if several else ())]
            both = [loss_settings.both(setting, cause) for cause in fitting if not cause.unnamed]
            if both := [one for one in both if not several or _explains_all(one, cases)]:
                return both
    return ()


def _numbers(made: Breakdown, *, alone: bool) -> Hashable:
    """What an evaluation has: settings that give one number of a record are one there."""
    loss = f"{made.record_objective[0]:.12g}"
    return loss if alone else (loss, made.gradient.astype(np.float32).tobytes())


def _is_other(cause: Cause, words: Collection[str], *, simple: bool) -> bool:
    """Whether a mistake is none of some, and not two itself where only one is wanted."""
    return cause.words not in words and not (simple and cause.adds_to)


def _explains_all(cause: Cause, cases: Sequence[Case]) -> bool:
    return all(np.isfinite(cause.misfit(case)) for case in cases)


def _searched(
    case: Case,
    wanted: Callable[[Cause], bool],
    tiers: Sequence[Sequence[tuple[Source, int]]] = TIERS,
    by_chance: float = BY_CHANCE,
) -> Explained:
    fitting: dict[str, tuple[float, Cause]] = {}
    losses: list[float] = []
    alone = max(SURE, case.rounding) if case.has_one_number else 0.0
    for number, tier in enumerate(tiers):
        worst = alone if alone and number else np.inf
        for source, most in tier:
            tried = filter(wanted, _possible(case, source))
            fits = ((cause.misfit(case, losses), cause) for cause in tried)
            found = islice(
                ((off, cause) for off, cause in fits if off <= worst and np.isfinite(off)), most
            )
            fitting |= {
                cause.words: (off, cause) for off, cause in found if cause.words not in fitting
            }
        if any(off <= max(DIGITS, alone) for off, cause in fitting.values() if not cause.equal):
            break
    least = min((off for off, _ in fitting.values()), default=0.0)
    enough = max(DIGITS, BETTER * least, alone if case.of_rounded else 0.0)
    best = [cause for off, cause in fitting.values() if off <= enough]
    if any(cause.mistake == "accumulation-missing" for cause in best):  # counts times its steps
        best = [cause for cause in best if cause.mistake != "accumulation-twice"]
    simpler = {cause.words for cause in best}
    best = [cause for cause in best if simpler.isdisjoint(cause.adds_to)]
    best.sort(key=lambda cause: not cause.is_common)
    where = UNKNOWN
    if case.has_one_number and matches_by_chance(case, losses) > by_chance:
        return Explained(where, (), best[: _PERHAPS if case.of_rounded else MOST])
    named = [cause for cause in best if not cause.equal]
    return Explained(where, named[:MOST], () if named else best[:MOST])


def _possible(case: Case, source: Source) -> Iterator[Cause]:
    """Yields the causes of a source, until it can make no more of this record."""
    try:
        yield from source(case)
    except IMPOSSIBLE:
        if STRICT in environ:
            raise
        return


def matches_by_chance(case: Case, losses: Sequence[float]) -> float:
    """Counts the mistakes that are expected to give the one number of a record by chance.

    It is how many of those tried give a number within a quarter of it, times the share of that
    stretch that its digits leave open.
    """
    if not case.loss or abs(case.loss) < 1e-300:
        return 0.0
    size, room = abs(case.loss), max(case.loss_room, SURE * abs(case.loss))
    off = np.unique(np.round((np.array(losses) - case.loss) / (1e-9 * size))) * 1e-9 * size
    around = int(((np.abs(off) > room) & (np.abs(off) <= 0.25 * size + room)).sum())
    return around * room / (0.25 * size)


# ---- over many records: what explained one is tried first on the next ---------------------------

_KEPT = 3
"""Answers remembered."""
_PERHAPS, _ENOUGH = 24, 4
"""Causes that rounding leaves open, and how many records have to tell the right one of them."""
_SOLVED_FROM = 3
"""Records that a number which they share is solved from."""


class Memory:
    """Remembers the answers to the records before; searches a number of them from the beginning.

    What is found depends on the order of the records and on nothing else.

    Args:
        most: records that may be searched; later ones are only tried against known answers.

    Attributes:
        left_out: records that were not searched, since ``most`` had been.
    """

    _pairs_left = 3

    def __init__(self, most: int) -> None:
        self._left = most
        self._known: list[tuple[Hashable, Sequence[Cause]]] = []
        self._for_all: list[tuple[Hashable, Sequence[Cause]]] = []
        self._unexplained: list[Case] = []
        self._alone: Case | None = None
        self._searches = 0
        self.left_out = 0

    @property
    def enough(self) -> int:
        """How many records had to be searched for none to be left out."""
        return self._searches + self.left_out

    def explained(self, suspect: Suspect) -> Explained | None:
        """Says why a record differs, and where if it was searched; None where it was not."""
        if known := self._fitting(suspect, self._known) or self.for_all(suspect):
            return Explained(None, known)
        if self._left <= 0:
            self.left_out += 1
            return None
        self._left -= 1
        case = suspect.case
        found, key = explained(case), case.key
        self._searches += 1
        if found.where is _UNDEFINED:
            return found
        if any(cause.for_all for cause in found.causes):
            self._for_all += [(key, found.causes)]
            return found
        if all(cause.unnamed for cause in found.causes):
            self._unexplained.append(case.rounded)
            is_hidden = case.is_rounded and case.rounded.rooms_off < _IS_SEEN
            of_all = () if is_hidden or _is_coarse(case) else self._of_all(case)
            if found.causes:  # a number that nobody types may be a product of two mistakes
                of_all = [one._replace(for_all=False) for one in of_all] or found.causes
            found = found._replace(causes=of_all)
        if found.causes and not found.causes[0].for_all:
            self._known = [(key, found.causes), *self._known][:_KEPT]
        else:
            least = _ENOUGH if len(found.possible) > MOST else 1
            some = (one for one in found.possible if not one.equal)
            perhaps = [one._replace(for_all=True, least=least) for one in some]
            self._for_all += [(key, some) for some in (perhaps, found.causes) if some]
        return found

    def _of_all(self, case: Case) -> Sequence[Cause]:
        """What explains records that no mistake alone does, to be named if it explains all.

        A loss is searched for two mistakes alone only if it stays the only one.
        """
        cases = self._unexplained
        if len(cases) == 1 and case.gradient is None:
            self._alone = case
            return ()
        self._alone = None
        with suppress(*IMPOSSIBLE):
            several = loss_settings.shared(cases), statistics.shared_std(cases[-_SOLVED_FROM:])
            for cause in chain(*several) if len(cases) > 1 else ():
                if _explains_all(cause, cases):
                    return [cause]
        if not self._pairs_left:
            return ()
        self._pairs_left -= 1
        return paired(cases if len(cases) > 1 else [case], again=self._pairs_left < 2)

    def search_alone(self) -> bool:
        """Searches the only loss that nothing explains for two mistakes; whether any are found.

        It is asked without the room of rounding, which too many pairs come within.
        """
        found = paired([self._alone]) if self._alone is not None else ()
        self._for_all += [(self._alone.key, found)] if self._alone and found else []
        return bool(found)

    def for_all(self, suspect: Suspect) -> Sequence[Cause]:
        """What was found before to be named if it explains all, if it explains a record too."""
        return self._fitting(suspect, self._for_all)

    def _fitting(
        self, suspect: Suspect, answers: list[tuple[Hashable, Sequence[Cause]]]
    ) -> Sequence[Cause]:
        """The first of the answers that explains a record, which is then tried first."""
        key = suspect.key if answers else ()
        for at, (of, known) in enumerate(answers):
            fitting = [cause for cause in known if of == key and fits(cause, suspect)]
            if fitting:
                answers.insert(0, answers.pop(at))
                return fitting
        return ()


def fits(cause: Cause, suspect: Suspect) -> bool:
    """Whether a cause explains a record as well as the one that it was found in."""
    return suspect.misfit(cause) <= FITS
