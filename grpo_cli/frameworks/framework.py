"""What a room says of its framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from grpo_cli.objective.choice import Choice
from grpo_cli.objective.row import Row, Use

Settings = Mapping[str, object]


@dataclass(frozen=True)
class Reading:
    """What a trainer's settings come to: a row, the stages swapped in it, and hyperparameters.

    Attributes:
        row: the row's name, as the framework or the table has it.
        stages: stage → the framework's own name of the choice, or the table's.
        hyperparameters: values that the settings fix.
    """

    row: str
    stages: Mapping[str, str] = field(default_factory=dict)
    hyperparameters: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Framework:
    """A framework's part of the tables.

    Attributes:
        name: what stands before the slash in the names of its rows and choices.
        rows: its rows by name.
        choices: stage → the choices that only it has, by name.
        aliases: stage → its names for choices that others have, and the choices.
        read: what a record's ``framework`` settings come to; None: they name a row at most.
    """

    name: str
    rows: Mapping[str, Row[Use]]
    choices: Mapping[str, Mapping[str, Choice]] = field(default_factory=dict)
    aliases: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    read: Callable[[Settings], Reading] | None = None
