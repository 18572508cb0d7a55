"""Logged series: TRL's trainer_state.json, JSONL of metrics, CSV exports of W&B and TensorBoard."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from grpo_cli.errors import InputError
from grpo_cli.records.parse.log import NESTED, STEPS, is_logged

Log = Mapping[str, Mapping[int, float]]
"""Name → step → value."""

_LINE = 1 << 20
"""No row of metrics is longer."""
_TENSORBOARD = {"Wall time", "Step", "Value"}


def is_log(path: str) -> bool:
    """Whether a file is a log of a trainer: trainer_state.json, metrics as JSON lines, or a CSV."""
    if not Path(path).is_file():
        return False
    if Path(path).name.endswith((".csv", "trainer_state.json")):
        return True
    try:
        with Path(path).open("rb") as stream:
            row = orjson.loads(stream.readline(_LINE))
    except (OSError, orjson.JSONDecodeError):
        return False
    return isinstance(row, dict) and is_logged(row)


def read_log(path: str) -> Log:
    """The series of a log; values that are no finite numbers are left out.

    Raises:
        InputError: where it cannot be read, or no row says its step.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=path) from None
    try:
        rows = list(_rows(data, path))
    except (orjson.JSONDecodeError, UnicodeDecodeError, csv.Error, AttributeError) as error:
        raise InputError(f"expected a log as JSON, JSONL or CSV: {error}", source=path) from None
    found: dict[str, dict[int, float]] = {}
    for step, values in _stepped(rows):
        for name, value in values.items():
            number = _number(value)
            if number is not None and name not in STEPS:
                found.setdefault(name, {})[step] = number
    if not found:
        raise InputError(
            f"no row of this log has a step ({', '.join(STEPS[:3])}, …) and a number", source=path
        )
    return found


def _rows(data: bytes, path: str) -> Iterable[Mapping[str, Any]]:
    text = data.lstrip()
    if text.startswith((b"{", b"[")):
        return _of_json(data)
    table = csv.DictReader(io.StringIO(data.decode("utf-8-sig")))
    if set(table.fieldnames or ()) == _TENSORBOARD:
        name = Path(path).stem.rpartition("tag-")[2] or Path(path).stem
        return [{"step": row["Step"], name: row["Value"]} for row in table]
    return list(table)


def _of_json(data: bytes) -> Iterable[Mapping[str, Any]]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return [orjson.loads(line) for line in data.splitlines() if line.strip()]
    if isinstance(value, dict):
        rows: list[Mapping[str, Any]] = value.get("log_history", [value])
        return rows
    return [one for one in value if isinstance(one, dict)]


def _stepped(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for row in rows:
        step = next((one for name in STEPS if (one := _whole(row.get(name))) is not None), None)
        if step is None:
            continue
        nested = [row[name] for name in NESTED if isinstance(row.get(name), dict)]
        yield step, _plain({**row, **(nested[0] if nested else {})})


def _plain(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Names without the run that W&B's exports put before them, or the extremes behind them."""
    plain = {name.rpartition(" - ")[2]: value for name, value in row.items() if name is not None}
    return {name: value for name, value in plain.items() if not name.endswith(("__MIN", "__MAX"))}


def _whole(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number.is_integer() else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
