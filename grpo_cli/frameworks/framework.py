"""What a room says of its framework."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from grpo_cli.objective.accumulation import Rule
from grpo_cli.objective.row import Row, Use

Settings = Mapping[str, object]


@dataclass(frozen=True)
class Reading:
    """What a trainer's settings come to: a row, the stages swapped in it, and hyperparameters.

    Attributes:
        row: the row's name, as the framework or the table has it.
        stages: stage → the framework's own name of the choice, or the table's.
        hyperparameters: values that the settings fix.
        missing: stage → why no choice reproduces what the settings make of it: an error, unless a
            flag chooses or the advantages are given.
    """

    row: str
    stages: Mapping[str, str] = field(default_factory=dict)
    hyperparameters: Mapping[str, object] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Change:
    """A release from which on rows have another number than before.

    Attributes:
        since: the first release with the new number.
        what: what changed, in a sentence.
        rows: the names of the rows that it changed.
        before: the version after the @ of the rows that keep the earlier number, as ``1.9.2`` in
            ``trl/dapo@1.9.2``: the last release that had it.
        stage: the part of the signature without which a loss did not change; "" for none.
    """

    since: str
    what: str
    rows: tuple[str, ...]
    before: str
    stage: str = ""


@dataclass(frozen=True)
class Framework:
    """A framework's part of the tables.

    Attributes:
        name: the part before the slash in the names of its rows and choices.
        rows: its rows by name.
        earlier: rows of releases before, by name: ``trl/dapo@1.9.2``.
        changes: what changed between releases.
        read: what a record's ``framework`` settings come to; None: they name a row at most.
        accumulation: how its trainer adds up the losses of micro-batches whose denominators count
            nothing of the step.
        entropy_accumulation: the same for an entropy term that it treats differently.
    """

    name: str
    rows: Mapping[str, Row[Use]]
    earlier: Mapping[str, Row[Use]] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    read: Callable[[Settings], Reading] | None = None
    accumulation: Rule | None = None
    entropy_accumulation: Rule | None = None


def as_of(changes: Iterable[Change], row: str, version: str) -> str:
    """The row that has a row's number as a release had it.

    Args:
        changes: those of the row's framework.
        row: the name of one of its newest rows.
        version: the release, as ``1.9.2``; what is no release is taken for the newest one.
    """
    own = [change for change in changes if row in change.rows]
    for change in sorted(own, key=lambda change: _order(change.since)):
        if _order(version) < _order(change.since):
            return f"{row}@{change.before}"
    return row


def is_gone(until: str, name: str, version: str) -> bool:
    """Whether a release is newer than the last one that has a row.

    Args:
        until: the row's own word, as ``trl 1.7.1``.
        name: the framework whose release it is.
        version: the release; what is no release is taken for the newest one.
    """
    framework, _, last = until.partition(" ")
    return framework == name and _order(last) < _order(version)


def _order(version: str) -> tuple[tuple[int, ...], bool]:
    """What releases are sorted by: 1.9.2 < 1.10.0.dev0 < 1.10; a word is behind all of them."""
    release = re.match(r"v?(\d+(?:\.\d+)*)(.*)", version)
    if release is None:
        return (sys.maxsize,), True
    numbers = tuple(int(number) for number in re.sub(r"(\.0+)+$", "", release[1]).split("."))
    preliminary = re.match(r"[.-]?(dev|a|b|rc)", release[2])
    return numbers, preliminary is None
