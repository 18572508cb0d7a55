"""The vectors as they are stored, read once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from grpo_cli.vectors.case import Case, Step, Tolerance

VERSION = "v1"
FILES = ("advantage", "clip", "kl", "aggregate", "correction", "metrics", "invariance")
RESULTS = ("required", "convention", "invalid")


class Flag(NamedTuple):
    """A bug that was made before.

    Attributes:
        bug: what is computed instead.
        thread: where it was reported or mended.
    """

    bug: str
    thread: str


@cache
def cases() -> tuple[Case, ...]:
    """All cases, file by file."""
    return tuple(case for name in FILES for case in _cases(json.loads(stored(f"{name}.json"))))


@cache
def flags() -> Mapping[str, Flag]:
    """Flag → the bug it names."""
    table = json.loads(stored("flags.json"))["flags"]
    return {name: Flag(**entry) for name, entry in table.items()}


def stored(name: str) -> str:
    """The text of one file of this version of the vectors."""
    return files(__package__).joinpath(VERSION, name).read_text(encoding="utf-8")


def _cases(document: Mapping[str, Any]) -> list[Case]:
    tolerances = {
        dtype: Tolerance(entry["relative"], entry["absolute"])
        for dtype, entry in document["tolerances"].items()
    }
    return [_case(entry, tolerances) for entry in document["cases"]]


def _case(entry: Mapping[str, Any], tolerances: Mapping[str, Tolerance]) -> Case:
    columns = numbers(entry["input"])
    split = entry.get("split", [[list(range(len(columns["group_ids"])))]])
    return Case(
        id=entry["id"],
        comment=entry["comment"],
        flags=tuple(entry["flags"]),
        choices=entry["choices"],
        same_under=entry.get("same_under", {}),
        hyperparameters=entry.get("hyperparameters", {}),
        input=columns,
        result=entry["result"],
        expected=numbers(entry.get("expected", {})),
        conventions=numbers(entry.get("conventions", {})),
        topic=entry.get("topic", ""),
        split=split,
        tolerances={dtype: tolerances[dtype] for dtype in entry.get("dtypes", tolerances)},
        executed=tuple(entry.get("executed", ())),
        step=step_of(columns, split),
    )


def step_of(columns: Mapping[str, Any], split: list[list[list[int]]]) -> Step:
    """What the whole step of an input spans."""
    return Step(
        tokens=sum(sum(row) for row in columns.get("mask", ())),
        responses=len(columns["group_ids"]),
        groups=len(set(columns["group_ids"])),
        ranks=len(split),
        micro_batches=len(split[0]),
    )


WORDS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
"""JSON has no numbers for these."""


def numbers(value: Any) -> Any:
    """The value with ``"nan"``, ``"inf"`` and ``"-inf"`` as floats."""
    if isinstance(value, str):
        return WORDS.get(value, value)
    if isinstance(value, Mapping):
        return {key: numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [numbers(inner) for inner in value]
    return value
