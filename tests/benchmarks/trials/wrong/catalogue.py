"""What else a record may expect, right or wrong, and what ``verify`` has to make of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trials.product import Answer, Record, rows
from trials.strangers.world import Random, bfloat16
from trials.wrong.mistake import Mistake


@dataclass(frozen=True)
class Expectation:
    """A change of ``expected``, and whether the answer to it is good."""

    made: Callable[[Record, Random], Record]
    good: Callable[[Answer], bool]


def _with(record: Record, **changed: Any) -> Record:
    return {**record, "expected": {**record["expected"], **changed}}


def _not_finite(record: Record, random: Random) -> Record:
    value = [float("nan"), float("inf"), float("-inf")][int(random.integers(3))]
    made = _with(record, loss=value)
    if random.random() < 0.5:
        rows = [list(row) for row in record["expected"]["loss_gradient"]]
        counted = record.get("completion_mask") or [[1] * len(row) for row in rows]
        row = max(range(len(rows)), key=lambda at: sum(counted[at]))
        rows[row][0] = value
        made = _with(record, loss_gradient=rows)
    return {**made, "not_finite": True}


def _typing_slip(record: Record, random: Random) -> Record:
    expected = dict(record["expected"])
    old, new = (("loss_gradient", "loss_grad"), ("loss", "losss"))[int(random.integers(2))]
    expected[new] = expected.pop(old)
    return {**record, "expected": expected}


def _rounded(kind: Callable[[Any], Any]) -> Callable[[Record, Random], Record]:
    def made(record: Record, random: Random) -> Record:
        rows = [
            np.asarray(kind(np.array(row, dtype=np.float32)), dtype=float).tolist()
            for row in record["expected"]["loss_gradient"]
        ]
        return _with(record, loss_gradient=rows)

    return made


def _noisy(record: Record, random: Random) -> Record:
    """float32 noise of 1e-5 of the largest gradient, as a sum in another order leaves."""
    rows = record["expected"]["loss_gradient"]
    scale = max(abs(value) for row in rows for value in row)
    changed = [[v + 1e-5 * scale * random.normal() if v else v for v in row] for row in rows]
    return _with(record, loss_gradient=changed)


def _own_names(record: Record, random: Random) -> Record:
    """The tool's own names, as its ``eval`` prints them, with numbers that are far off."""
    name = str(random.choice(["clip_fraction", "gradient_norm"]))
    return _with(record, **{name: 0.987})


_PRECISION = re.compile(r"bf16|bfloat16|fp16|float16|half precision|rounding", re.IGNORECASE)


def _names_precision(answer: Answer) -> bool:
    return bool(_PRECISION.search(str(answer.document) + answer.told))


EXPECTATIONS = {
    "NaN or infinity expected is a difference": Expectation(
        _not_finite, lambda answer: answer.code in (1, 3)
    ),
    "a key with a typing slip is refused": Expectation(
        _typing_slip, lambda answer: answer.code == 3 and "loss" in answer.told
    ),
    "bfloat16 gradients are named as that": Expectation(_rounded(bfloat16), _names_precision),
    "float16 gradients are named as that": Expectation(
        _rounded(lambda row: row.astype(np.float16)), _names_precision
    ),
    "float32 noise beside larger gradients agrees": Expectation(
        _noisy, lambda answer: answer.code == 0
    ),
    "its own names are compared": Expectation(_own_names, lambda answer: answer.code == 1),
}

MISTAKES = [Mistake(**row) for row in rows(__file__, "mistakes.csv")]
