"""Records made of packed columns are those that are parsed one at a time, in every field."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from grpo_cli.engine import Reader
from grpo_cli.engine.packing import packed_runs
from grpo_cli.errors import InputError
from grpo_cli.records import DecodedChunk, Raw, Record, record
from grpo_cli.records.whole import read_records

TESTS = Path(__file__).parents[1]
GROUPED = {"uid": ["b", "a", "b"], "rewards": [1, 0.5, 0], "logps": [[-1.0], [], [-2.0, -3]]}
MADE_UP = [
    GROUPED,
    GROUPED | {"uid": "b", "mask": [[1], [], [1, 0]], "step": 3, "id": "a", "note": 1},
    GROUPED | {"trajectory_ids": ["t", "u", "t"], "expected": {"loss": 0.5}},
    GROUPED | {"turn_ids": [[0], [], [0, 1]], "weight_versions": [[3], [], [3, 4]]},
    GROUPED | {"advantages": [[1], [], [2, 0.5]], "old_logprob_x": [[-1.0], [], [-2.0, -3]]},
    GROUPED | {"beta": 0.1, "hyperparameters": {"epsilon": 0.3}, "roles": [["a"], [], ["a", "b"]]},
    GROUPED | {"rewards": [1e200, 0, 1]},
]


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, list):
        return type(other) is list and [*map(repr, one)] == [*map(repr, other)]
    return type(one) is type(other) and repr(one) == repr(other)


def check(items: Any, packed: Any) -> int:
    for raw, whole in zip(items, read_records(items, packed), strict=True):
        parsed = record(raw)
        if isinstance(parsed, InputError):
            assert isinstance(whole, InputError)
            continue
        for field in dataclasses.fields(Record):
            pair = getattr(whole, field.name), getattr(parsed, field.name)
            assert is_same(*pair), (field.name, *pair)
    return 0 if packed is None else len(items)


def test_records_of_files_are_those_that_are_parsed():
    folders = (TESTS / "data", TESTS / "data" / "rollouts", TESTS.parent / "samples")
    paths = [path for folder in folders for path in folder.glob("[!b]*.jsonl")]
    count = 0
    for decoded in Reader([*map(str, paths)], skip=True)._decoded():
        count += sum(check(*run) for chunk in decoded for run in packed_runs(chunk))
    assert count > 50


def test_made_up_records_are_those_that_are_parsed():
    def pair(one: dict[str, Any]) -> DecodedChunk:
        full = {"mask": [[1], [], [1, 1]]} if "mask" in one else {}
        return DecodedChunk([Raw(value, "a.jsonl", 1, "", 0) for value in (one, one | full)])

    each = [check(*run) for one in MADE_UP for run in packed_runs(pair(one))]
    assert each.count(0) <= 2
