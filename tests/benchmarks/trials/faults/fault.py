"""A planted fault: how it comes about, how strong, and what it takes to have named it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from trials.kinds import NAMES
from trials.kinds.kind import finish, precise
from trials.product import Record
from trials.simulate.batch import Batch
from trials.simulate.policy import Random
from trials.simulate.run import simulate
from trials.simulate.setup import Setup
from trials.simulate.write import records

Strength = Any


def unchanged(setup: Setup, strength: Strength) -> Setup:
    return setup


def unedited(batch: Batch, strength: Strength, random: Random) -> Batch:
    return batch


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong; its name and ``named`` are a row of ``faults.csv``.

    Attributes:
        name: what it is called in the report.
        strengths: how strong; from ``sure`` on it has to be found.
        kinds: the clean kinds that it is planted into, one after the other.
        named: a regular expression on ``code: message`` of a finding that names it.
        change: makes it by changing the run.
        edit: makes it by changing what came of the run.
        sure: the strengths that count for the rate; the others are told of, but not counted.
        any_severity: whether a finding that only informs is enough (behaviour, not a fault).
        dump: changes of the dump: columns, layout, padding.
    """

    name: str
    strengths: tuple[Strength, ...]
    kinds: tuple[str, ...]
    named: str
    change: Callable[[Setup, Strength], Setup] = unchanged
    edit: Callable[[Batch, Strength, Random], Batch] = unedited
    sure: tuple[Strength, ...] | None = None
    any_severity: bool = False
    dump: dict[str, Any] | None = None

    def counted(self, strength: Strength) -> bool:
        return self.sure is None or strength in self.sure


def plant(
    strengths: tuple[Strength, ...], kinds: tuple[str, ...], **how: Any
) -> Callable[..., Fault]:
    """A fault without its name and its words."""
    return lambda name, named: Fault(name, strengths, kinds, named, **how)


def planted(fault: Fault, strength: Strength, kind: str, random: Random) -> list[Record]:
    """The records of a batch of the kind, with the fault."""
    base = NAMES[kind]
    setup = precise(base.vary(base.setup, random), random)
    setup = replace(setup, dump=replace(setup.dump, **(fault.dump or {})))
    setup = fault.change(setup, strength)
    batch = finish(simulate(setup, random), setup)
    edited = fault.edit(batch.copy(), strength, random)
    return records(edited, setup.dump, random, f"{fault.name}/{strength}/{kind}")
