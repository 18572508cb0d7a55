"""What is named of records that differ: one choice for all of them, when all were searched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from grpo_cli.commands.verify.answer import Difference, Verdict
from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.cause import IMPOSSIBLE, Cause
from grpo_cli.commands.verify.causes.located import HINT, UNKNOWN, Located
from grpo_cli.commands.verify.causes.search import BY_CHANCE, MOST, Memory, fits
from grpo_cli.commands.verify.causes.suspects import Suspect
from grpo_cli.commands.verify.compare import FLOAT64

_MANY = 4
"""Differing records among which one that is explained alone says nothing."""
_NEARLY = 0.9
"""The share of records that is explained where other mistakes may be in the others."""
_SURELY = 3.0
"""How many times more records a cause explains than chance does."""


@dataclass
class Finding:
    """A record that differs, and what is known of that.

    Attributes:
        judged: its verdict, without a cause.
        first: where it first differs.
        suspect: the record; None where it is not kept to be asked again.
        where: where its numbers differ.
        causes: what explains it.
        of_all: what explains it, to be named only if it explains all records.
        possible: the words of what fits too.
        searched: whether a cause was searched for in this record.
    """

    judged: Verdict
    first: Difference
    suspect: Suspect | None = None
    where: Located = UNKNOWN
    causes: Sequence[Cause] = ()
    of_all: Sequence[Cause] = ()
    possible: Sequence[str] = ()
    searched: bool = True

    @property
    def mistakes(self) -> dict[str, None]:
        """The names of its causes in the catalogue."""
        return dict.fromkeys(cause.mistake for cause in self.causes)

    def verdict(self) -> Verdict:
        """The verdict with what is known."""
        words = tuple(cause.words for cause in self.causes)
        stages = tuple(dict.fromkeys(cause.stage for cause in self.causes))
        first = replace(
            self.first,
            stage=stages[0] if stages else self.first.stage,
            cause=" or ".join(words) or None,
            causes=words,
            stages=stages,
            mistakes=tuple(self.mistakes),
            pattern=self.where.words or None,
            located=self.where.stages,
            possible=tuple(self.possible),
            searched=self.searched or bool(self.causes),
        )
        return replace(self.judged, first=first)


def choose(findings: Sequence[Finding], memory: Memory) -> None:
    """Chooses what is named: what explains all records, then what explains the most, then others.

    A mistake that was found in several records is named of others that it explains.
    """
    if memory.search_alone() or any(one.of_all for one in findings):
        shared = [
            (one, (one.suspect and memory.for_all(one.suspect)) or one.of_all) for one in findings
        ]
        rest = [(one, some) for one, some in shared if not one.causes]
        if not _name_shared(shared):
            _name_shared(rest)
    counts = Counter(cause.words for one in findings for cause in one.causes)
    most = max(counts.values(), default=0)
    known = {cause.words: cause for one in findings for cause in one.causes}
    tried = [known[words] for words, count in counts.items() if count == most][:MOST]
    for one in findings if 1 < most < len(findings) else ():
        if one.suspect is not None:
            own = {cause.words for cause in one.causes}
            more = [x for x in tried if x.words not in own and fits(x, one.suspect)]
            one.causes = [*more, *one.causes]
    if len(findings) >= _MANY:
        _leave_out_chance(findings)
    everywhere = Counter(name for one in findings for name in one.mistakes)
    separable: dict[tuple[str, ...], bool] = {}
    for one in findings:
        one.causes = sorted(one.causes, key=lambda cause: -everywhere[cause.mistake])
        key = tuple(cause.words for cause in one.causes)
        if one.suspect is not None and key not in separable:
            separable[key] = _differ_in_gradient(one.causes, one.suspect.case)
        if not separable.get(key, True):
            one.where = one.where._replace(words=one.where.words.removesuffix(HINT))


def _differ_in_gradient(causes: Sequence[Cause], case: Case) -> bool:
    """Whether a gradient would say more about which of several causes it is."""
    if len(causes) < 2:
        return True
    with suppress(*IMPOSSIBLE), np.errstate(all="ignore"):
        first, *others = (cause.evaluate(case).gradient for cause in causes)
        return any(
            one.shape != first.shape or not np.allclose(one, first, rtol=1e-12, atol=0.0)
            for one in others
        )
    return True


def _name_shared(shared: Sequence[tuple[Finding, Sequence[Cause]]]) -> bool:
    """Names what explains all of some records, or of many nearly all; whether there is any."""
    counts = Counter(name for _, some in shared for name in {cause.mistake for cause in some})
    most = max(counts.values(), default=0)
    if not most or (most < len(shared) and most < max(_NEARLY * len(shared), _MANY)):
        return False
    for one, some in shared:
        if named := [cause for cause in some if cause.least <= counts[cause.mistake]]:
            one.causes = named
    return True


def _leave_out_chance(findings: Sequence[Finding]) -> None:
    """Makes causes possible ones, where they explain one of many records, or some lone numbers.

    One number agrees with some mistake by chance in as many as ``BY_CHANCE`` of records; a loss of
    0 agrees with many.
    """
    everywhere = Counter(name for one in findings for name in one.mistakes)
    counts = Counter(name for one in findings if not _is_0(one.first) for name in one.mistakes)
    counts |= {name: count for name, count in everywhere.items() if count == len(findings)}
    enough = max(2.0, _SURELY * BY_CHANCE * len(findings))
    for one in findings:
        least = enough if one.first.key in ("loss", "objective") else 2
        if one.causes and max(counts[name] for name in one.mistakes) < least:
            one.possible = [*(cause.words for cause in one.causes), *one.possible]
            one.causes = ()


def _is_0(first: Difference) -> bool:
    """Whether a number is 0 but for what a float64 sum leaves."""
    return first.of == 1 and abs(first.expected) <= FLOAT64 * abs(first.got)


def shared_causes(findings: Sequence[Finding]) -> tuple[Sequence[str], int]:
    """Returns the causes that explain the most records, as the first of those has it.

    A mistake that has another number in each record is one mistake.
    """
    counts = Counter(name for each in findings for name in each.mistakes)
    most = max(counts.values(), default=0)
    best = {name for name, count in counts.items() if count == most}
    first = next((each for each in findings if best & {*each.mistakes}), None)
    if first is None or len(findings) == 1:
        return tuple(cause.words for cause in first.causes) if first else (), most
    words = Counter(cause.words for each in findings for cause in each.causes)
    shared = tuple(cause.words for cause in first.causes if words[cause.words] == most)
    return shared or [x.words for x in first.causes if x.mistake in best][:1], most
