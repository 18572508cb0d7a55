"""What a column of log-probs seems to hold where its values are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from grpo_cli.batch import F64

_MANY, _ENOUGH = 0.2, 6  # so large a part of so many values is no rounding
_LOGITS = "look like logits: take log_softmax of them, and each token's own entry"
_WIDE = 1000
"""From here on rows of equal length are a vocabulary rather than the tokens of responses."""


def values(column: F64) -> str:
    """What a record's column seems to hold, where that is no log-probs."""
    numbers = column[np.isfinite(column)]
    if numbers.size < _ENOUGH or np.mean(numbers > 0.0) < _MANY:
        return ""
    if numbers.min() < 0.0:
        return f"; these {_LOGITS}"
    if numbers.max() <= 1.0:
        return "; these look like probabilities: take their natural logarithm"
    return "; these look like −log p, as losses are: negate them"


def rows(key: str, column: list[Any], lengths: Sequence[int], *, deep: bool) -> str:
    """What a column seems to hold that is nested a level deeper than others.

    Args:
        key: the column as written.
        column: what stands there, lists in lists.
        lengths: how long each of the innermost lists is.
        deep: whether there is such a list where others have a number.
    """
    first = _first(column)
    if len(set(lengths)) > 1 or len(first) < 2 or not all(map(_is_number, first)):
        return ""
    above = sum(value > 0 for value in first)
    if not deep and (lengths[0] < _WIDE or above < _MANY * len(first)):
        return ""
    if above:
        return f"; the {lengths[0]:,} numbers in each list of {key} {_LOGITS}"
    return (
        f"; {key} is nested as several groups are: if its {lengths[0]:,} numbers in each list are "
        "of the words of the vocabulary, dump the entry of the token taken"
    )


def _first(column: list[Any]) -> list[Any]:
    while column and type(column[0]) is list:
        column = column[0]
    return column


def _is_number(value: object) -> bool:
    return isinstance(value, float | int)
