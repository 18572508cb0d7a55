"""Padded columns → the ragged lists of a record."""

from __future__ import annotations

import numpy as np

from grpo_cli.hooks.columns import Array, copied, number, ragged, record_of, widths

from .stand_ins import Tensor

MASK = np.array([[1, 1, 0], [1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]])


def test_a_response_ends_with_its_last_token_that_counts() -> None:
    assert widths(MASK) == [2, 3, 0, 3, 2]
    assert widths(MASK.astype(bool)) == [2, 3, 0, 3, 2]


def test_a_mask_is_given_only_where_there_are_holes() -> None:
    found = record_of({}, {}, MASK, MASK, {}, {})["mask"]
    assert [row.tolist() for row in found] == [[1, 1], [1, 0, 1], [], [1, 1, 1], [0, 1]]
    whole: Array = MASK[[0, 2, 3]]
    assert record_of({}, {}, whole, whole, {}, {}) == {"expected": {}}


def test_single_precision_becomes_double_with_every_bit() -> None:
    values = np.array([[0.1, 0.2], [0.3, 0.4]], dtype=np.float32)
    rows = ragged(values, [1, 2])
    assert [row.dtype for row in rows] == [np.float64, np.float64]
    assert [row.tolist() for row in rows] == [[float(values[0, 0])], [*map(float, values[1])]]
    assert ragged(np.array([[7, 8]], dtype=np.int32), [1])[0].dtype == np.int64


def test_one_number_for_each_response_stays_so() -> None:
    columns = {"advantages": np.array([1.0, 2.0], dtype=np.float32)}
    made = record_of({"id": 1}, columns, MASK[:2], MASK[:2], {"step": 0}, {})
    assert made["advantages"].tolist() == [1.0, 2.0]
    assert [*made] == ["id", "advantages", "mask", "step", "expected"]


def test_a_copy_does_not_follow_its_tensor() -> None:
    tensor = Tensor([1.0, 2.0], np.float32)
    kept = copied(tensor)
    tensor.values -= 5.0
    assert kept.tolist() == [1.0, 2.0]


def test_half_precision_is_widened_before_numpy_sees_it() -> None:
    assert copied(Tensor([0.5], np.float16)).dtype == np.float32
    assert copied(Tensor([0.1], np.float64)).tolist() == [0.1]
    assert copied(Tensor([3], np.int32)).dtype == np.int32


def test_numbers_of_any_kind() -> None:
    assert number(Tensor(0.5)) == 0.5
    assert type(number(np.float32(2))) is float
    assert number(3) == 3
    assert number(None) is None
