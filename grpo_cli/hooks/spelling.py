"""A record → a line of JSON, with NaN and Infinity where numbers are not finite."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE


def line_of(record: Mapping[str, Any]) -> bytes:
    """The record's line. orjson alone would write null for what is not finite."""
    return orjson.dumps(_spelled(record), option=_OPTIONS)


def _spelled(value: Any) -> Any:
    """``value`` with whatever is not finite in it spelled out, as Python's ``json`` does."""
    if isinstance(value, Mapping):
        return {name: _spelled(each) for name, each in value.items()}
    if isinstance(value, list):
        return value if _of_words(value) else [_spelled(each) for each in value]
    if isinstance(value, np.ndarray):
        return value if _all_finite(value) else orjson.Fragment(json.dumps(value.tolist()))
    if isinstance(value, float) and not math.isfinite(value):
        return orjson.Fragment(json.dumps(float(value)))
    return value


def _of_words(values: list[Any]) -> bool:
    return bool(values) and isinstance(values[0], str)


def _all_finite(values: np.ndarray[Any, Any]) -> bool:
    return values.dtype.kind != "f" or bool(np.isfinite(values).all())
