"""What ``grpo check`` names in the worst record of each of a run's first events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from grpo_cli.commands.check.floors import judge
from grpo_cli.commands.check.run import Check
from grpo_cli.commands.check.view import mismatch_lines
from grpo_cli.commands.report.groups import steps_of_mismatch
from grpo_cli.commands.trend.events import Event
from grpo_cli.commands.trend.step import WARNING, Place
from grpo_cli.engine import Reader
from grpo_cli.errors import InputError
from grpo_cli.objective.mismatch import Mismatch
from grpo_cli.records import Block, DecodedChunk, Reading

_MOST = 2
"""Events whose records are read again."""
_OF_SEVERAL = ("singleton-group", "reference")
"""Codes that need the other records of the step, or of the run."""


def with_checks(events: Sequence[Event], reader: Reader) -> list[Event]:
    """The events, the first two that are wrong with what ``grpo check`` names in their records.

    Only a file on disk of which a line is a record is read again, and no other line is decoded.
    """
    wrong = [one for one in events if one.severity == WARNING][:_MOST]
    if reader.on_cluster:
        return [*events]
    return [
        replace(one, check=_named_in(one, reader.reading)) if one in wrong else one
        for one in events
    ]


def with_mismatches(events: Sequence[Event], found: Mapping[int, Mismatch]) -> list[Event]:
    """The events, those on the engines' mismatch with what explains it at their worst step.

    Args:
        events: of a run.
        found: the mismatch of the tokens of each step that such an event points at.
    """
    made = []
    for event in events:
        named = [step for one in event.findings for step in steps_of_mismatch(one)]
        step = next((one for one in named if one in found), None)
        judged = None if step is None else judge(found[step].result())
        if judged is not None:
            words = "; ".join(line.strip() for line in mismatch_lines(judged))
            event = replace(event, check=[*event.check, f"at step {step}: {words}"])
        made.append(event)
    return made


def _named_in(event: Event, reading: Reading) -> list[str]:
    """The errors and warnings of ``grpo check`` in the worst record of an event, one of a code."""
    place = next((one.worst for one in event.findings if one.worst is not None), None)
    if place is None or not Path(place.source).is_file():
        return []
    part, checked = Check(), Check()
    for _ in part.read(_record_at(place, reading)):
        return []  # it cannot be read
    checked.merge(part)
    checked.finish()
    named: dict[str, str] = {}
    for row in checked.result().findings:
        if row.severity != "info" and row.code not in _OF_SEVERAL:
            named.setdefault(row.code, f"{row.code}: {row.message}")
    return [*named.values()]


def _record_at(place: Place, reading: Reading) -> Iterator[DecodedChunk]:
    """The record of a place."""
    for piece in reading.pieces(place.source):
        if not isinstance(piece, Block) or piece.document or place.line is None:
            return
        if piece.groups is None:
            at = place.line - piece.line
            if not 0 <= at < len(piece.lines):
                continue
            piece = piece._replace(line=place.line, lines=piece.lines[at : at + 1])
        for decoded in reading.decoded(piece, {}):
            for item in decoded.items:
                if not isinstance(item, InputError) and item.line == place.line:
                    yield DecodedChunk([item], decoded.keys)
                    return
