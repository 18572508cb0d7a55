"""The tokens themselves, for display beside the numbers."""

from __future__ import annotations

from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.records.parse.columns import Shape, check_nesting, flatten
from grpo_cli.records.places import got


def read_words(key: str, value: object, shape: Shape, kind: type) -> list[list[Any]]:
    """[R] lists of token strings (``kind`` str) or token ids (int), masked ones included.

    Raises:
        InputError: for another shape than the token columns', or an element of another kind.
    """
    check_nesting(key, value, shape, "token")
    flat = flatten(key, value, shape)
    if not set(map(type, flat)) <= {kind}:
        at = next(at for at, one in enumerate(flat) if type(one) is not kind)
        wanted = "a string" if kind is str else "a whole number"
        raise InputError(f"expected {wanted}, got {got(flat[at])}", path=key + shape.place(at))
    rows, start = [], 0
    for width in shape.widths:
        rows.append(flat[start : start + width])
        start += width
    return rows
