"""What ``verify`` compares: each record, or the records of a step, or of the input, as one batch.

A trainer logs one loss for a step, and each record of the step may repeat it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from grpo_cli.engine import Reader
from grpo_cli.errors import InputError
from grpo_cli.records import Raw, Record, key_of
from grpo_cli.records.parse.assemble import join
from grpo_cli.records.places import got
from grpo_cli.records.record import step_of
from grpo_cli.records.unread import STEP_FIELDS

RECORD = "record"
"""As ``--batch`` has it, where each record is compared alone."""

UNITS = {"record": "records", "step": "steps", "batch": "batches"}
"""What is compared, and its plural."""


def unit_of(batch: str) -> str:
    """What the batches of ``--batch`` are called: record, step or batch."""
    if batch == RECORD:
        return RECORD
    return "step" if batch.rpartition(".")[2] in STEP_FIELDS else "batch"


# ---- whose the losses are ------------------------------------------------------------------------


@dataclass
class Losses:
    """The losses that records expect, by step; they merge.

    Attributes:
        steps: a step, None where records say none → of each of its records the losses.
    """

    steps: dict[Hashable, list[tuple[float, ...]]] = field(default_factory=dict)

    def add(self, value: Any) -> None:
        """Adds a record as decoded."""
        if not isinstance(value, dict):
            return
        expected = value.get("expected")
        known = expected if isinstance(expected, dict) else {}
        given = (known.get(name) for name in ("loss", "objective"))
        values = tuple([float(one) for one in given if isinstance(one, int | float)])
        self.steps.setdefault(step_of(value), []).append(values)

    def merge(self, later: Losses) -> None:
        """Adds the records that follow."""
        for step, losses in later.steps.items():
            self.steps.setdefault(step, []).extend(losses)

    @property
    def are_zero(self) -> bool:
        """Whether no loss is another number than 0."""
        return not any(any(values) for losses in self.steps.values() for values in losses)

    @property
    def are_repeated(self) -> bool:
        """Whether all records of a step expect one loss, and some step has several records."""
        alike = all(all(losses) and len({*chain(*losses)}) == 1 for losses in self._known)
        return alike and any(len(losses) > 1 for losses in self._known)

    @property
    def are_one(self) -> bool:
        """Whether all records of the input expect one loss, another number than 0."""
        each = [values for losses in self.steps.values() for values in losses]
        one = len(each) > 1 and all(each) and len({*chain(*each)}) == 1
        return one and not self.are_zero

    @property
    def are_once(self) -> bool:
        """Whether only the first record of each step expects a loss, or only the last."""
        known = self._known
        if not known or any(len(losses) < 2 or sum(map(bool, losses)) > 1 for losses in known):
            return False
        return any(all(losses[at] for losses in known) for at in (0, -1))

    @property
    def _known(self) -> list[list[tuple[float, ...]]]:
        """The losses of the steps that have any."""
        return [losses for losses in self.steps.values() if any(losses)]

    def batches(self, steps: Mapping[str, Sized]) -> list[str]:
        """What a loss may be of, as ``--batch`` has it: a step, or all of the input.

        Args:
            steps: the fields that say a step, and the steps of the input.
        """
        of_steps = self.are_repeated or self.are_once
        name = next((name for name, values in steps.items() if len(values) > 1), "input")
        return [*dict.fromkeys([name] * of_steps + ["input"] * self.are_one)]


# ---- batches -------------------------------------------------------------------------------------


def read_batches(
    reader: Reader, batch: str, seen: Callable[[Raw], Raw]
) -> Iterator[tuple[Raw, Record]]:
    """Yields the records of each batch as one, and the first of them as decoded.

    Args:
        reader: the files.
        batch: as ``--batch`` has it; not "record".
        seen: gets each record as decoded, and may add what it expects.

    Raises:
        InputError: at the first record that cannot be read or joined, unless those are skipped.
    """
    reader.batch_by(batch)
    batches: dict[Hashable, tuple[Raw, list[Record]]] = {}
    for raw, record in reader.records():
        record.expected = seen(raw).plain().get("expected")
        batches.setdefault(key_of(record.batch), (raw, []))[1].append(record)
    for raw, records in batches.values():
        try:
            yield raw, _as_one(records)
        except InputError as error:
            reader.bad(error)


def _as_one(records: Sequence[Record]) -> Record:
    """One record of a batch, called as the batch is.

    A step's loss adds up what its micro-batches divide by their number, and averages ranks.
    """
    values = [*(records[0].batch or {"": "input"}).values()]
    name = values[0] if len(values) == 1 else "/".join(map(str, values))
    made = join(records)
    settings = {at: one for at, one in made.hyperparameters.items() if at not in _OF_PARTS}
    return replace(made, id=name, hyperparameters=settings, expected=_expected_of(records))


_OF_PARTS = ("gradient_accumulation_steps", "num_processes")
"""What a micro-batch or a rank is of the step; the step is whole."""


def _expected_of(records: Sequence[Record]) -> Any:
    """What a batch expects: its numbers, which its records repeat or one of them has.

    Lists are those of the records' responses and tokens. Metrics are of the records.
    """
    known = [(one, one.expected) for one in records if isinstance(one.expected, dict)]
    found: dict[str, Any] = {}
    for key in dict.fromkeys(key for _, expected in known for key in expected):
        having = [(one, value) for one, e in known if (value := e.get(key)) is not None]
        values = [value for _, value in having]
        if isinstance(values[0] if values else {}, dict):
            continue
        if isinstance(values[0], list) and len(values) == len(records):
            found[key] = [row for rows in values for row in rows]
        else:
            _check_equal(key, having)
            found[key] = values[0]
    return found if known else records[0].expected


def _check_equal(key: str, having: Sequence[tuple[Record, Any]]) -> None:
    """Raises an error if records of a batch expect different numbers of it."""
    first, wanted = having[0]
    for one, value in having:
        if value != wanted and (value == value or wanted == wanted):  # NaN is another error
            before = "the first" if first.line is None else f"line {first.line}"
            message = (
                f"expected {got(wanted)}, which {before} of the same batch has, got {got(value)}; "
                "--batch record compares each record alone"
            )
            path = f"{one.prefix}expected.{key}"
            raise InputError(message, path=path, source=one.source, line=one.line)
