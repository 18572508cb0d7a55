"""Logged series: TRL's trainer_state.json, JSONL of metrics, CSV exports of W&B and TensorBoard."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grpo_cli.commands.trend.step import NotFinite, Steps
from grpo_cli.commands.trend.sums import StepSums
from grpo_cli.engine import Reader
from grpo_cli.errors import InputError
from grpo_cli.records import Source
from grpo_cli.records.objects import decode
from grpo_cli.records.open.streams import budget_of, is_whole, opened, reason, unpacked
from grpo_cli.records.parse.record import NESTED, STEPS, is_logged
from grpo_cli.records.tables.pieces import kind_of
from grpo_cli.records.translate import Notices
from grpo_cli.terminal.numbers import shell_line

Log = Mapping[str, Mapping[int, float]]
"""Name → step → value."""


@dataclass(frozen=True)
class LogFile:
    """The rows of a log.

    Attributes:
        name: the file, as the user named it.
        rows: the step of each, and its numbers by name.
        notices: what is not used of it.
    """

    name: str
    rows: Sequence[tuple[int, Mapping[str, float]]]
    notices: Notices


_PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
_LEGIBLE = 20
"""Characters of a text in a note."""
_LINE = 1 << 20
"""No row of metrics is longer."""
_DOCUMENT = 64 << 20
"""No log that is one JSON document is larger."""
_TENSORBOARD = {"Wall time", "Step", "Value"}


def is_log(source: Source, most: int | None = None) -> bool:
    """Whether a file is a log of a trainer: trainer_state.json, metrics as JSON lines, or a CSV.

    Args:
        source: the file.
        most: what it may unpack to, as --unpack says; None: by its size.
    """
    path = Path(source.path)
    if not path.is_file() or kind_of(source.head[:9], source.path) is not None:
        return False
    if path.name.endswith((".csv", "trainer_state.json")):
        return True
    try:
        value = _first_value(source, most)
    except InputError:
        return False
    row = value[0] if isinstance(value, list) and value else value
    return isinstance(row, dict) and is_logged(row)


@contextmanager
def _opened(source: Source, most: int | None) -> Iterator[io.BufferedReader]:
    """The bytes of a log, unpacked where it is packed as records may be."""
    head = source.head
    if head.startswith(_PACKED):
        with unpacked(source.path, head, most) as stream:
            yield stream
    elif is_whole(head):
        yield io.BufferedReader(io.BytesIO(head))
    else:
        try:
            with opened(source.path) as stream:
                yield stream
        except OSError as error:
            raise InputError(reason(error)) from None


def _first_value(source: Source, most: int | None) -> Any:
    """The JSON of the first line, or of the whole file where a line holds no value."""
    with _opened(source, most) as stream:
        line = stream.readline(_LINE)
        try:
            return decode(line)
        except InputError:
            rest = stream.read(_DOCUMENT)
        budget_of(stream).check_line(line + rest)
    if len(rest) == _DOCUMENT:
        raise InputError("too large for a log")
    return decode(line + rest)


def read_log(source: Source, most: int | None = None) -> LogFile:
    """The rows of a log.

    Args:
        source: the file.
        most: what it may unpack to, as --unpack says; None: by its size.

    Raises:
        InputError: where it cannot be read, or no row says its step.
    """
    try:
        with _opened(source, most) as stream:
            data = stream.read()
            budget_of(stream).check_line(data)
            rows = list(_rows(data, source.path))
    except InputError as error:
        raise InputError(error.message, source=source.name, line=error.line) from None
    except (UnicodeDecodeError, csv.Error, AttributeError) as error:
        raise InputError(f"{_EXPECTED}: {error}", source=source.name) from None
    return log_of(rows, source.name)


def log_of(rows: Iterable[Mapping[str, Any]], name: str) -> LogFile:
    """The log that has these rows.

    Raises:
        InputError: where no row says its step.
    """
    stepped = [*_stepped(rows)]
    numbers = [
        (step, {key: n for key, one in row.items() if (n := _number(one)) is not None})
        for step, row in stepped
    ]
    if not any(row for _, row in numbers):
        named = ", ".join(STEPS[:3])
        reason = f"no row of this log has both a step ({named}, …) and a number"
        raise InputError(reason, source=name)
    notes = _not_numbers(stepped, numbers)
    return LogFile(name, numbers, {f"{name}: {one}": None for one in notes})


def _not_numbers(
    stepped: Iterable[tuple[int, Mapping[str, Any]]],
    numbers: Iterable[tuple[int, Mapping[str, float]]],
) -> Iterator[str]:
    """Says where series of numbers have texts."""
    series = {name for _, row in numbers for name in row}
    found: dict[str, list[tuple[int, str]]] = {}
    for step, row in stepped:
        for name in series & row.keys():
            if isinstance(text := row[name], str) and text.strip() and _number(text) is None:
                found.setdefault(name, []).append((step, text))
    for name, ((step, text), *more) in found.items():
        many = f", and at {len(more):,} more rows" if more else ""
        yield f"{name} is no number at step {step} ({text[:_LEGIBLE]!r}){many}: ignored"


def unused(objective: Sequence[str]) -> Notices:
    """The note that the flags of an objective, if there are any, are not used for a log."""
    words = f"{shell_line(objective)} is not used: a log of metrics has no tokens to evaluate"
    return {words: None} if objective else {}


def read_finite(path: str | None, most: int | None) -> tuple[Log | None, Notices]:
    """The finite series of ``--log`` and notes about the others; None where no log is given."""
    if path is None:
        return None, {}
    steps = steps_of([read_log(Source.of(path), most)])
    gaps = [f"{path}: {one}; these steps are not compared" for one in not_finite(steps)]
    gaps += steps.notices
    log: dict[str, dict[int, float]] = {}
    for name, column in steps.metrics.items():
        numbers = [*zip(steps.numbers, column.tolist(), strict=True)]
        if values := {step: value for step, value in numbers if not math.isnan(value)}:
            log[name] = values
    return log, dict.fromkeys(gaps)


_EXPECTED = "expected a log as JSON, JSONL or CSV"


def _rows(data: bytes, path: str) -> Iterable[Mapping[str, Any]]:
    if not data.lstrip().startswith((b"{", b"[")):
        text = data.decode("utf-8-sig")
        head = text.partition("\n")[0]
        separator = ";" if ";" in head and "," not in head else ","
        table = csv.DictReader(io.StringIO(text), delimiter=separator)
        if set(table.fieldnames or ()) != _TENSORBOARD:
            return list(table)
        name = Path(path).stem.rpartition("tag-")[2] or Path(path).stem
        return [{"step": row["Step"], name: row["Value"]} for row in table]
    try:
        value = decode(data)
    except InputError as error:
        return _of_lines(data, error)
    if isinstance(value, dict):
        rows: list[Mapping[str, Any]] = value.get("log_history", [value])
        return rows
    return [one for one in value if isinstance(one, dict)]


def _of_lines(data: bytes, no_document: InputError) -> list[Mapping[str, Any]]:
    """The objects of JSON lines; where the first is none, why the whole is no document either."""
    rows = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            rows += [decode(line)] if line.strip() else []
        except InputError as error:
            at, reported = (number, error) if rows else (no_document.line, no_document)
            raise InputError(f"{_EXPECTED}: {reported.message}", line=at) from None
    return rows


def _stepped(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The step of each row that says one, and its values.

    Their names are without the run that W&B's exports put before them; extremes are left out.
    """
    for row in rows:
        numbers = (_number(row.get(name)) for name in STEPS)
        step = next((int(one) for one in numbers if one is not None and one.is_integer()), None)
        if step is None:
            continue
        nested: Mapping[str, Any] = next(
            (row[name] for name in NESTED if isinstance(row.get(name), dict)), {}
        )
        named = {name: value for name, value in {**row, **nested}.items() if name is not None}
        plain = {name.rpartition(" - ")[2]: value for name, value in named.items()}
        ends = ("__MIN", "__MAX")
        yield (
            step,
            {
                name: value
                for name, value in plain.items()
                if name not in STEPS and not name.endswith(ends)
            },
        )


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def logs_among(reader: Reader, named: Sequence[str]) -> Steps | None:
    """The steps of the one run that all files are logs of; None where they have records.

    Args:
        reader: of the files.
        named: the files as the user named them: those of a folder are records.

    Raises:
        InputError: where a log cannot be read.
    """
    most = reader.reading.unpack
    if reader.paths != [*named] or not all(is_log(one, most) for one in reader.sources):
        return None
    return steps_of([read_log(one, most) for one in reader.sources])


def steps_of(logs: Sequence[LogFile]) -> Steps:
    """The steps of the one run that all logs are of, under the names that they have.

    Of two values of a step the last counts: the run may have been resumed.
    """
    found: dict[int, dict[str, float]] = {}
    for log in logs:
        for step, row in log.rows:
            found.setdefault(step, {}).update(row)
    numbers = sorted(found)
    every = dict.fromkeys(name for row in found.values() for name in row)
    metrics = {name: np.array([found[one].get(name, np.nan) for one in numbers]) for name in every}
    broken = {}
    for name, column in metrics.items():
        has = [name in found[one] for one in numbers]
        places = np.flatnonzero(~np.isfinite(column) & has).tolist()
        if places:
            kinds = dict.fromkeys(_KINDS[str(column[at])] for at in places)
            broken[name] = NotFinite(places, f"{name} is {' or '.join(kinds)}")
        column[np.isinf(column)] = np.nan
    sums = StepSums(np.array(numbers), [(logs[0].name, None)] * len(numbers), {})
    steps = Steps(sums, metrics, broken, logged=True)
    steps.notices = {note: None for log in logs for note in log.notices}
    return steps


_KINDS = {"nan": "NaN", "inf": "inf", "-inf": "−inf"}
_MOST = 5
"""Series with NaN that are named; after a NaN in the weights it is all of them."""


def not_finite(steps: Steps) -> list[str]:
    """Sentences that say where NaN and infinities are, the earliest first."""
    found = sorted(steps.not_finite.items(), key=lambda one: one[1].places[0])
    sentences = []
    for name, broken in found[:_MOST]:
        count, first = len(broken.places), f"at step {steps.numbers[broken.places[0]]}"
        of = count + np.count_nonzero(~np.isnan(steps.metrics[name]))
        many = f"at {count} of {of} steps, first " if count > 1 else ""
        sentences.append(f"{broken.words} {many}{first}")
    if len(found) > _MOST:
        rest = ", ".join(name for name, _ in found[_MOST:])
        sentences.append(f"{len(found) - _MOST} other series are not finite at some steps: {rest}")
    return sentences
