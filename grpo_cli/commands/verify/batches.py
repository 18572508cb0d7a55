"""What ``verify`` compares: each record, or the records of a step, or of the input, as one batch.

A trainer logs one loss for a step, and each record of the step may repeat it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
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

    steps: dict[Hashable, list[set[float]]] = field(default_factory=dict)

    def add(self, value: Any) -> None:
        """Adds a record as decoded."""
        if not isinstance(value, dict):
            return
        expected = value.get("expected")
        known = expected if isinstance(expected, dict) else {}
        given = (known.get(name) for name in ("loss", "objective"))
        values = {float(one) for one in given if isinstance(one, int | float)}
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
        known = [losses for losses in self.steps.values() if any(losses)]
        alike = all(all(losses) and len(set().union(*losses)) == 1 for losses in known)
        return alike and any(len(losses) > 1 for losses in known)

    @property
    def are_once(self) -> bool:
        """Whether only the first record of each step expects a loss, or only the last."""
        known = [losses for losses in self.steps.values() if any(losses)]
        if not known or any(len(losses) < 2 or sum(map(bool, losses)) > 1 for losses in known):
            return False
        return any(all(losses[at] for losses in known) for at in (0, -1))


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
        record.expected = seen(raw).value.get("expected")
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
    given = [one for one in records if one.expected is not None]
    first = given[0].expected if given else None
    if not isinstance(first, dict):
        return first
    found: dict[str, Any] = {}
    for key, value in first.items():
        if isinstance(value, dict):
            continue
        values = [(one.expected or {}).get(key) for one in given]
        if isinstance(value, list) and len(given) == len(records):
            found[key] = [row for rows in values for row in (rows or [])]
        else:
            odd = next((at for at, one in enumerate(values) if one != value), None)
            if odd is not None:
                path, other = f"{given[odd].prefix}expected.{key}", given[odd]
                before = "the first" if given[0].line is None else f"line {given[0].line}"
                message = (
                    f"expected {got(value)}, which {before} of the same batch has, got "
                    f"{got(values[odd])}; --batch record compares each record alone"
                )
                raise InputError(message, path=path, source=other.source, line=other.line)
            found[key] = value
    return found
