"""Whether one record evaluates to what it expects."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from grpo_cli.commands.verify.causes.case import Case, Cause
from grpo_cli.commands.verify.causes.search import causes
from grpo_cli.commands.verify.compare import Difference, Tolerance, difference
from grpo_cli.commands.verify.expected import expectations
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.errors import InputError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.records import Record
from grpo_cli.variants.plan import Plan


@dataclass(frozen=True)
class Verdict:
    """What became of one record.

    Attributes:
        record: the record.
        variant, signature: what it was evaluated as.
        compared: the keys that were compared, in the order of the stages.
        ignored: the keys of ``expected`` that say nothing of this objective.
        first: where it first differs; None where everything agrees.
        also: the other keys that differ.
        causes: why, the simplest first; all of them explain everything that is expected.
    """

    record: Record
    variant: str
    signature: str
    compared: tuple[str, ...]
    ignored: tuple[str, ...]
    first: Difference | None
    also: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether nothing differs."""
        return self.first is None

    def row(self) -> dict[str, Any]:
        """The verdict as JSON."""
        record, first = self.record, None
        if self.first is not None:
            words = [cause.words for cause in self.causes]
            stages = [*dict.fromkeys(cause.stage for cause in self.causes)]
            first = asdict(self.first) | {"cause": " or ".join(words) or None, "causes": words}
            first |= {"stage": (stages or [self.first.stage])[0], "stages": stages}
        return {
            "id": record.name,
            "source": record.source,
            "line": record.line,
            "agrees": self.agrees,
            "variant": self.variant,
            "signature": self.signature,
            "compared": list(self.compared),
            "ignored": list(self.ignored),
            "first": first,
            "also": list(self.also),
        }


def judge(record: Record, plan: Plan, tolerance: Tolerance) -> Verdict:
    """Evaluates a record and compares it with what it expects, in the order of the stages.

    Raises:
        InputError: where the record cannot be evaluated, or what it expects cannot be read.
    """
    wanted, ignored = _expectations(record)
    breakdown = _evaluate(record, plan)
    known = [one for one in wanted if one.of(breakdown) is not None]
    compared = tuple(one.key for one in known)
    ignored += [one.key for one in wanted if one.key not in compared]
    differing = [
        (one, found)
        for one in known
        if (found := difference(one, record, breakdown, tolerance)) is not None
    ]
    about = (record, plan.variant, breakdown.objective.signature, compared, tuple(ignored))
    if not differing:
        return Verdict(*about, first=None)
    first, where = differing[0]
    why = causes(Case(record, breakdown, known, tolerance))
    also = tuple(one.key for one, _ in differing[1:])
    return Verdict(*about, first=where, also=also, causes=tuple(why))


def _expectations(record: Record) -> Any:
    try:
        return expectations(record)
    except InputError as error:
        raise InputError(
            error.message,
            path=record.prefix + error.path,
            source=record.source,
            line=record.line,
        ) from None


def _evaluate(record: Record, plan: Plan) -> Breakdown:
    return Chunk.of([record]).run(Evaluator(plan).evaluate)
