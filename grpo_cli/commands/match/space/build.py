"""All the conventions for records like these, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.commands.match.space import changes as space
from grpo_cli.commands.match.space.conventions import Part, Space
from grpo_cli.commands.match.space.known import Depth, Known
from grpo_cli.commands.match.space.natures import Natures
from grpo_cli.commands.match.space.parts import MOST_CHANGES, Builder
from grpo_cli.errors import InputError
from grpo_cli.variants.plan import Plan


def build(base: Plan, natures: Natures, betas: Sequence[float], depth: Depth) -> Space:
    """The space for records like the one whose natures are known."""
    known = Known.of(base, natures.alone)
    builder = Builder(base, natures, known, betas, depth)
    made = Space(builder.options, reasons=builder.numbers.reasons)
    for row in space.rows(base):
        if builder.is_new(row):
            made.parts += builder.parts(row)
    if not made.parts:
        raise InputError(next(iter(made.reasons.values()), "no convention can be tried"))
    made.same = builder.same
    _flatten(made)
    return made


def _flatten(made: Space) -> None:
    """The conventions of all parts side by side."""
    types: dict[str, np.dtype[Any]] = {}
    columns: dict[str, bytearray] = {}
    for number, part in enumerate(made.parts):
        for name, piece in _combined(number, part).items():
            types[name] = piece.dtype
            columns.setdefault(name, bytearray()).extend(piece.tobytes())
    merged: dict[str, NDArray[Any]] = {
        name: np.frombuffer(column, types[name]) for name, column in columns.items()
    }
    made.part, made.at = merged.pop("part"), merged.pop("at")
    made.beta, made.bits = merged.pop("beta"), merged.pop("bits")
    made.columns = merged


def _combined(number: int, part: Part) -> dict[str, NDArray[np.int32]]:
    shape = tuple(len(axis) for axis in part.axes)
    counts = [np.array([one.count for one in axis], np.int8) for axis in part.axes]
    bits = [np.array([one.bits for one in axis]) for axis in part.axes]
    total = _outer(counts)
    at = np.flatnonzero(total <= MOST_CHANGES)
    a, p, k, w = np.unravel_index(at, shape)
    policy, kl, weight = part.policy[a, p], part.kl[k, p], part.weight[w]
    fits = (policy >= 0) & (kl > -2) & (weight >= 0)
    if part.only_own_weight:
        fits &= w == 0
    at, a, p, k, w = at[fits], a[fits], p[fits], k[fits], w[fits]
    policy, kl, weight = policy[fits], kl[fits], weight[fits]
    cost = bits[0][a] + bits[1][p] + bits[2][k] + bits[3][w]
    cost += np.where(total.ravel()[at] == MOST_CHANGES, 1.0, 0.0)

    return {
        "part": np.full(len(at), number, np.int16),
        "at": at.astype(np.int32),
        "policy": policy,
        "kl": kl.astype(np.int16),
        "weight": weight.astype(np.int16),
        "beta": part.beta[k],
        "bits": cost,
    }


def _outer(counts: Sequence[NDArray[np.int8]]) -> NDArray[np.int8]:
    a, p, k, w = counts
    total: NDArray[np.int8] = (
        a[:, None, None, None] + p[None, :, None, None] + k[None, None, :, None] + w
    )
    return total
