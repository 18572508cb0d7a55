"""The answer of ``verify``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isclose, isfinite
from typing import Any

from grpo_cli.commands.answer import Answer, Printed
from grpo_cli.commands.frames import Frames
from grpo_cli.commands.verify.batches import UNITS, unit_of
from grpo_cli.terminal.numbers import counted, is_round, shown

_RUNS = 3
"""Runs of differing steps that a verdict names."""
_BY_CHANCE = 0.01
"""How probable it may be that no record before a step differs, if those after it began nothing."""


_OF_CHOICE = re.compile(r"(?P<kind>.+): (?P<choice>aggregate \S+ instead of \S+)")
_OF_COUNT = re.compile(r"(?:(?P<kind>.+): your loss )?(?P<reading>.+); (?P<own>\S+ divides by .+)")
_OF_FACTOR = re.compile(r".*mean instead of a sum: yours is the computed one .+ = .+")
_EACH, _AND = "divides each token by ", ", and "


def sentences(causes: Sequence[str]) -> list[str]:
    """The causes; several readings of one denominator are one sentence."""
    counts = [found for words in causes if (found := _OF_COUNT.fullmatch(words))]
    counts = [one for one in counts if _about(one) == _about(counts[0])]
    choices = [found for words in causes if (found := _OF_CHOICE.fullmatch(words))]
    choices = [one for one in choices if counts and _about(one) == _about(counts[0])][:1]
    if len(counts) + len(choices) < 2 or not counts:
        return [*causes]
    kind = f"{choices[0]['kind']} ({choices[0]['choice']})" if choices else counts[0]["kind"]
    starts = {"" if one["kind"] else one["reading"].rpartition(_AND)[0] for one in counts}
    start = f"{min(starts)}{_AND}" if len(starts) == 1 and starts != {""} else ""
    readings = [one["reading"].removeprefix(start) for one in counts]
    first, *others = [
        reading if one["kind"] else f"is {reading}"
        for one, reading in zip(counts, readings, strict=True)
    ]
    others = [one.removeprefix(_EACH) if first.startswith(_EACH) else one for one in others]
    kind = f"{kind or 'another denominator'}: your loss"
    merged = f"{start}{kind} {', or '.join([first, *others])}; {counts[0]['own']}"
    used = {found[0] for found in (*counts, *choices)}
    rest = [one for one in causes if one not in used and not _OF_FACTOR.fullmatch(one)]
    at = sum(one in rest for one in causes[: min(map(causes.index, used))])
    return [*rest[:at], merged, *rest[at:]]


def _about(found: re.Match[str]) -> tuple[str, str]:
    """Another mistake that a cause adds its denominator to, and the term that this is of."""
    before, _, kind = (found["kind"] or "").rpartition(_AND)
    return before, kind.partition(" over ")[0] if " over " in kind else ""


def agree(count: int) -> str:
    """The verb of so many records."""
    return "agrees" if count == 1 else "agree"


@dataclass(frozen=True)
class Difference(Answer):
    """Where a record first differs from what it expects, and why.

    Attributes:
        key: its name in ``expected``.
        stage: the stage that computes it, or the stage of the first cause.
        response, token: its place; the token's position as written. None for a whole record.
        expected, got: the record's number, and the computed one.
        differing, of: how many numbers of this key differ, and how many there are.
        cause, causes: mistakes that explain all expected numbers, the simplest first.
        stages: the stages of the causes.
        mistakes: their names in the catalogue of mistakes.
        pattern: where the numbers differ, and by what rule, for any cause.
        located: the stages that can cause such a difference; empty if the numbers do not show it.
        possible: mistakes that fit, if more numbers are needed to call one the cause.
        searched: whether a cause was searched for; else only causes of other records were tried.
    """

    key: str
    stage: str
    response: int | None
    token: int | None
    expected: float
    got: float
    differing: int
    of: int
    cause: str | None = None
    causes: Sequence[str] = ()
    stages: Sequence[str] = ()
    mistakes: Sequence[str] = ()
    pattern: str | None = None
    located: Sequence[str] = ()
    possible: Sequence[str] = ()
    searched: bool = True

    @property
    def factor(self) -> float | None:
        """Your number divided by grpo's, for one number of a whole record; None if undefined."""
        if self.response is not None or self.of > 1 or not self.got:
            return None
        ratio = self.expected / self.got
        return ratio if isfinite(ratio) else None


@dataclass(frozen=True)
class MetricDifference(Answer):
    """A metric that differs. It does not make a record fail that expects anything else.

    Frameworks often define a metric differently from its name.
    """

    key: str
    expected: float
    got: float


@dataclass(frozen=True)
class Verdict(Answer):
    """The result for a record with expected numbers.

    Attributes:
        id, source, line: the record.
        step: the record's step, or None.
        agrees: whether every number agrees; metrics count only if nothing else is expected.
        variant, signature: what it was evaluated as.
        compared: the keys that were compared, in the order of the stages.
        ignored: the keys of ``expected`` that the objective has no number for.
        first: where it first differs.
        also: the other keys that differ.
        metrics: the metrics that differ.
        rounded: keys that were rounded to half precision, and to which.
    """

    id: str | int | float
    source: str
    line: int | None
    step: str | int | float | None
    agrees: bool
    variant: str
    signature: str
    compared: Sequence[str]
    ignored: Sequence[str]
    first: Difference | None
    also: Sequence[str]
    metrics: Sequence[MetricDifference]
    rounded: Mapping[str, str]


@dataclass(frozen=True)
class Verified(Frames, Printed):
    """What ``verify`` returns.

    Attributes:
        ok: whether no record differs; metrics decide where nothing else is expected.
        rtol, atol: the tolerance.
        metrics_rtol: the relative tolerance of metrics.
        verified, differing, without_expected: records.
        causes: the mistakes that explain the most differing records; each explains all of these.
        explained: how many records ``causes`` explain.
        agrees_with: other variants, with their flags, that give all differing records.
        agreeing: how many records they give: all that differ, or 0.
        metrics_differ: metric → how many records it differs in.
        undefined: records that expect NaN, from a mean over no tokens.
        batch: what is a record here: "record", "input", or the fields of ``--batch``.
        records: the verdict on each.
    """

    ok: bool
    rtol: float
    atol: float | None
    metrics_rtol: float
    verified: int
    differing: int
    without_expected: int
    causes: Sequence[str]
    explained: int
    agrees_with: Sequence[str]
    agreeing: int
    metrics_differ: Mapping[str, int]
    undefined: int
    batch: str
    records: Sequence[Verdict]

    of_views = ("places", "unit", "how_many")

    @property
    def factor(self) -> float | None:
        """Your number divided by grpo's, if this ratio is the same in every differing record.

        None if a record differs first in something else than one number of the whole record, or
        two ratios differ by more than the relative tolerance.
        """
        firsts = [row.first for row in self.records if row.first is not None]
        ratios = [one.factor for one in firsts]
        known = [one for one in ratios if one is not None]
        if not known or len(known) < len(ratios) or len({one.key for one in firsts}) > 1:
            return None
        alike = all(isclose(one, known[0], rel_tol=self.rtol) for one in known)
        return known[0] if alike else None

    @property
    def unit(self) -> str:
        """What is compared: record, step or batch."""
        return unit_of(self.batch)

    @property
    def places(self) -> str:
        """Which steps or batches differ, at most three runs; of records from which step on."""
        if self.batch == "record":
            return self._since
        names = [shown(one.id) for one in self.records]
        differing = [at for at, one in enumerate(self.records) if not one.agrees]
        if self.batch == "input" or not differing:
            return ""
        spans = []
        for _, group in groupby(enumerate(differing), lambda pair: pair[1] - pair[0]):
            run = [names[at] for _, at in group]
            spans.append(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}")
        more = ["…"] if len(spans) > _RUNS else []
        unit = self.unit if len(differing) == 1 else UNITS[self.unit]
        return f"{unit} {', '.join([*spans[:_RUNS], *more])}"

    @property
    def _since(self) -> str:
        """The step from which on records differ; "" where that says nothing."""
        steps = [one.step for one in self.records if isinstance(one.step, int | float)]
        if not self.differing or len(steps) < len(self.records):
            return ""
        first = min(step for step, one in zip(steps, self.records, strict=True) if not one.agrees)
        before = sum(step < first for step in steps)
        agreeing = 1.0 - self.differing / (len(steps) - before + 1)
        return f"from step {shown(first)} on" if before and agreeing**before <= _BY_CHANCE else ""

    @property
    def why(self) -> str:
        """What explains the differing records, or the one factor in all of them; else "".

        Of one record, a factor that somebody may have typed.
        """
        if self.agrees_with:
            return f"yours are the numbers of {self.agrees_with[0]}"
        if self.causes:
            some = "" if self.explained == self.differing else f"{self.explained} of them: "
            first, *rest = sentences(self.causes)
            also = "".join(f", or {one}" for one in rest)
            also = f" ({len(rest)} others fit too)" if len(rest) > 1 else also
            return f"{some}{first}{also}"
        factor = self.factor
        if factor is None or (
            self.differing == 1 and not (is_round(factor) or is_round(1 / factor))
        ):
            return ""
        key = next(row.first.key for row in self.records if row.first)
        each = " in each" if self.differing > 1 else ""
        return f"your {key} is the computed one times {factor:.5g}{each}"

    @property
    def headline(self) -> str:
        """How many records differ, and why; or that all agree."""
        if not self.differing:
            of = counted(self.verified, self.unit, UNITS[self.unit])
            return f"agrees: {of} {agree(self.verified)}"
        where = f" ({self.places})" if self.places else ""
        return f"differs: {self.how_many}{where}: {self.why or 'cause not recognised'}"

    @property
    def how_many(self) -> str:
        """How many records differ; of one batch that it does."""
        if self.batch == "input":
            return "the batch differs"
        of = counted(self.verified, self.unit, UNITS[self.unit])
        return f"{self.differing:,} of {of} {'differs' if self.differing == 1 else 'differ'}"

    def table(self) -> list[dict[str, Any]]:
        """Where each record first differs."""
        return [
            {
                "record": one.id,
                "key": one.first.key,
                "response": one.first.response,
                "token": one.first.token,
                "yours": one.first.expected,
                "grpo": one.first.got,
                "mistake": one.first.mistakes[0] if one.first.mistakes else None,
            }
            for one in self.records
            if one.first is not None
        ]


@dataclass(frozen=True)
class StageDifference(Answer):
    """Where a stage of a bundle first differs.

    Attributes:
        id, source, line: the record.
        key: which number.
        response, token: where in the record; None for a number of all of it.
        yours, grpo: both numbers.
    """

    id: str | int | float
    source: str
    line: int | None
    key: str
    response: int | None
    token: int | None
    yours: float
    grpo: float


@dataclass(frozen=True)
class ReplayedStage(Answer):
    """The replay of one stage of a bundle.

    Attributes:
        stage: which.
        compared, differing: numbers of responses, records, steps or metrics.
        largest: the largest difference of two numbers that differ.
        first: where it first differs.
        skipped: why some of it was not replayed.
    """

    stage: str
    compared: int
    differing: int
    largest: float
    first: StageDifference | None
    skipped: Sequence[str]


@dataclass(frozen=True)
class Replay(Answer):
    """The replay of a bundle.

    Attributes:
        sha256: the hash of each file; empty where only some records are read.
        records, steps, responses: how many it has.
        first_stage: the first stage that differs; None where all agree.
        stages: all of them, in order.
    """

    sha256: Sequence[str]
    records: int
    steps: int
    responses: int
    first_stage: str | None
    stages: Sequence[ReplayedStage]


@dataclass(frozen=True)
class Replayed(Verified):
    """What ``verify`` returns for bundles.

    Attributes:
        bundle: their stages, all of which decide whether they agree.
    """

    bundle: Replay

    @property
    def headline(self) -> str:
        """That of its records, or the stage that differs first where they agree."""
        first = None if self.differing else self.bundle.first_stage
        return f"differs: {first} differs first" if first else super().headline
