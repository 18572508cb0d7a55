"""A file explained: what its loss is made of, why it is what it is, and one record worked out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grpo_cli.diagnose.evaluate import Runner, Unserved
from grpo_cli.diagnose.facts import Facts
from grpo_cli.diagnose.source import Piece, Source
from grpo_cli.diagnose.why import why
from grpo_cli.diagnose.worked import worked
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import InputError, UsageError
from grpo_cli.records import Record, assemble
from grpo_cli.variants.plan import Plan


@dataclass(frozen=True)
class Wanted:
    """Which record and response are worked out; by default the first record, if it stands alone."""

    record: str | None = None
    response: int | None = None


def explain(plan: Plan, source: Source, wanted: Wanted) -> dict[str, Any]:
    """The totals, the reasons and the arithmetic of one record.

    With a record asked for, everything is of that record alone.

    Raises:
        InputError: where the data lack what the plan needs.
        UsageError: for a record or response that there is not.
    """
    chosen, position = _record(source, wanted.record)
    pieces = source if wanted.record is None else [Piece([chosen], assemble([chosen]))]
    runner, totals, facts = Runner(plan), Totals(plan.batch), Facts()
    try:
        if runner.wants_moments:
            for piece in pieces:
                runner.measure(piece)
        for piece in pieces:
            breakdown = runner.run(piece)
            totals.add(breakdown)
            facts.add(piece, breakdown)
        alone = Piece([chosen], assemble([chosen]))
        steps = _worked(runner, alone, wanted.response)
    except Unserved as unserved:
        raise unserved.reason from None
    total = totals.row()
    return {
        "variant": plan.variant,
        "signature": totals.signature(),
        "total": total,
        "parts": facts.parts,
        "why": [{"code": one.code, "text": one.text} for one in why(total, facts)],
        "record": steps,
        "record_position": position,
    }


def _worked(runner: Runner, alone: Piece, response: int | None) -> dict[str, Any]:
    count = alone.batch.responses.count
    if response is not None and not 0 <= response < count:
        raise UsageError(f"--response {response}: the record has responses 0 to {count - 1}")
    return worked(alone, runner.run(alone), response)


def _record(source: Source, wanted: str | None) -> tuple[Record, int]:
    """The record by its id, else by its place from 0."""
    by_place: tuple[Record, int] | None = None
    place = 0
    for piece in source:
        for record in piece.records:
            if wanted is None or (record.id is not None and str(record.id) == wanted):
                return record, place
            if wanted == str(place):
                by_place = record, place
            place += 1
    if by_place is None:
        if not place:
            raise InputError("no record can be read")
        raise UsageError(f"--record {wanted}: no such id, and places are 0 to {place - 1}")
    return by_place
