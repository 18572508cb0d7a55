"""Every choice and every row, wherever they stand; a framework's room is read when it is needed."""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

from grpo_cli import papers
from grpo_cli.errors import UsageError, did_you_mean
from grpo_cli.frameworks.framework import Framework, as_of, is_gone
from grpo_cli.hyperparameters import Value
from grpo_cli.objective import objective
from grpo_cli.objective.choice import Bound, Choice, place_of, table
from grpo_cli.objective.objective import Stage
from grpo_cli.objective.row import Row, Use
from grpo_cli.objective.signature import choices_in
from grpo_cli.objective.terms import BONUS

T = TypeVar("T")
Variant = Row[Bound]

FRAMEWORKS: Mapping[str, str] = {
    "trl": "trl",
    "liger": "liger",
    "unsloth": "unsloth",
    "ms-swift": "ms_swift",
    "verl": "verl",
    "skyrl": "skyrl",
    "roll": "roll",
    "openrlhf": "openrlhf",
    "slime": "slime",
    "nemo-rl": "nemo_rl",
    "areal": "areal",
    "prime-rl": "prime_rl",
    "open-instruct": "open_instruct",
    "tinker": "tinker",
    "rllm": "rllm",
    "agent-lightning": "agent_lightning",
}
"""The part of a name before the slash → the framework's room, in the order of the lists."""


@cache
def framework(name: str) -> Framework:
    """A framework's part of the tables."""
    room: Framework = import_module(f"grpo_cli.frameworks.{FRAMEWORKS[name]}").FRAMEWORK
    return room


def framework_of(variant: str) -> Framework | None:
    """The framework that a row's name begins with; None for a paper's row."""
    room, slash, _ = variant.partition("/")
    return framework(room) if slash and room in FRAMEWORKS else None


def changed(row: str, earlier: str, later: str, signature: str) -> Iterator[str]:
    """What changed a loss in a framework's row between two of its releases, a sentence each.

    Args:
        row: the row.
        earlier, later: the releases.
        signature: the loss's; a change in a term that it has not is left out.
    """
    has = {name for name, one in choices_in(signature).items() if not one.startswith("none")}
    if (room := framework_of(row)) is not None:
        for change in room.changes:
            differs = as_of([change], row, earlier) != as_of([change], row, later)
            if differs and (not change.stage or change.stage in has):
                yield f"{room.name} {change.since}: {change.what}"


class _Table(Mapping[str, T]):
    """What is outside the rooms, then what is in them, by name.

    ``trl/dapo`` is looked for in TRL's room alone; other names are looked for everywhere.

    Args:
        common: what belongs to no framework.
        part: a framework's part of the table.
        unlisted: what of a framework is found by its whole name alone.
    """

    def __init__(
        self,
        common: Mapping[str, T],
        part: Callable[[Framework], Mapping[str, T]],
        unlisted: Callable[[Framework], Mapping[str, T]] | None = None,
    ) -> None:
        self._common = common
        self._part = part
        self._unlisted = unlisted
        self._merged: dict[str, T] | None = None

    def __getitem__(self, name: str) -> T:
        if name in self._common:
            return self._common[name]
        room, slash, _ = name.partition("/")
        if slash and room in FRAMEWORKS:
            found = self._part(framework(room))
            if name not in found and self._unlisted is not None:
                found = self._unlisted(framework(room))
            return found[name]
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, T]:
        if self._merged is None:
            rooms = (self._part(framework(name)) for name in FRAMEWORKS)
            self._merged = {**self._common, **{k: v for room in rooms for k, v in room.items()}}
        return self._merged


def _with_rooms(name: str, stage: Stage) -> Stage:
    return stage._replace(
        choices=_Table(stage.choices, lambda room: table(name, room.name).choices),
        aliases=_Table(stage.aliases, lambda room: table(name, room.name).aliases),
    )


STAGES: Mapping[str, Stage] = {
    name: _with_rooms(name, stage) for name, stage in objective.STAGES.items()
}
"""The stages in the order in which they run, with everybody's choices."""


@cache
def bind(stage: str, name: str, **values: Value) -> Bound:
    """The choice with the given hyperparameters; those not given take the choice's defaults.

    Raises:
        UsageError: for a choice that the stage does not have, as a row's may be misspelt.
    """
    listed = STAGES.get("aggregate" if stage.endswith("_aggregate") else stage)
    if listed is not None and name not in listed.choices:
        near = did_you_mean(name, listed.choices)
        raise UsageError(f"the {stage} {name} does not exist{near} (grpo variants --stage {stage})")
    choice = BONUS if listed is None else listed.choices[name]
    return Bound(name, choice, {**choice.defaults, **values})


def _bound(row: Row[Use]) -> Variant:
    """The row with its names bound to functions."""
    named = {field.name: getattr(row, field.name) for field in fields(row)}
    stages: dict[str, Any] = {
        stage: bind(stage, use.name, **use.values)
        for stage, use in named.items()
        if isinstance(use, Use)
    }
    return replace(row, **stages)  # type: ignore[return-value]


def _pickled(choice: Choice) -> Any:
    """How a choice is pickled: by its name, since functions of some are closures."""
    place = place_of(choice)
    return choice.__reduce_ex__(2) if place is None else (_named_choice, place)


def _named_choice(stage: str, name: str) -> Choice:
    return STAGES[stage].choices[name]


copyreg.pickle(Choice, _pickled)


class _Variants(Mapping[str, Variant]):
    """The rows, each bound when it is asked for."""

    def __init__(self, rows: Mapping[str, Row[Use]]) -> None:
        self._rows = rows
        self._variants: dict[str, Variant] = {}

    def __getitem__(self, name: str) -> Variant:
        if name not in self._variants:
            if name not in self:
                raise KeyError(f"unknown variant {name!r}{did_you_mean(str(name), NAMES)}")
            self._variants[name] = _bound(self._rows[name])
        return self._variants[name]

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __repr__(self) -> str:
        return f"<{len(self)} variants: {', '.join(self)}>"

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


ROWS: Mapping[str, Row[Use]] = _Table(
    papers.ROWS, lambda room: room.rows, lambda room: room.earlier
)
"""Every row as it is written; those of earlier releases (``trl/dapo@1.9.2``) are not listed."""

EARLIER: Mapping[str, Row[Use]] = _Table({}, lambda room: room.earlier)
"""The rows of earlier releases."""

VARIANTS: Mapping[str, Variant] = _Variants(ROWS)
"""Every variant by name. A name without a slash follows a paper; one with a slash reproduces a
released framework."""


def _names(rows: Mapping[str, Row[Use]]) -> dict[str, str]:
    aliases = {alias: name for name, row in rows.items() for alias in row.aliases}
    return {name: name for name in rows} | aliases


class _Names(_Table[str]):
    """Names of variants, also with a release that has no row of its own: ``trl/bnpo@1.9.0``."""

    def __getitem__(self, name: str) -> str:
        with suppress(KeyError):
            return super().__getitem__(name)
        row, _, version = name.partition("@")
        if not version[:1].isdecimal():
            raise KeyError(name)
        listed = super().__getitem__(row)
        room = framework_of(listed)
        if room is None or not room.changes or is_gone(ROWS[listed].until, room.name, version):
            raise KeyError(name)
        return as_of(room.changes, listed, version)


NAMES: Mapping[str, str] = _Names(
    _names(papers.ROWS), lambda room: _names(room.rows), lambda room: _names(room.earlier)
)
"""Every name that a variant answers to, and the one it is listed under."""
