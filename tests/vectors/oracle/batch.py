"""A batch as lists of mpmath numbers; what the mask removes is not in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mpmath import mp, mpf

mp.dps = 60

COLUMNS = {
    "new": "log_probs_new",
    "old": "log_probs_old",
    "ref": "log_probs_ref",
    "rollout": "log_probs_rollout",
    "entropy": "entropies",
}


@dataclass
class Token:
    """One token; ``frozen`` is log π_θ wherever a formula stops the gradient."""

    position: int
    new: mpf
    old: mpf
    ref: mpf
    rollout: mpf
    entropy: mpf
    frozen: mpf


@dataclass
class Response:
    """One response with the tokens that count. ``rewards`` has one for each reward function.

    ``turns`` are its turns in order: how many tokens each has, and its reward; ``states`` are those
    that they began in.
    """

    tokens: list[Token]
    rewards: list[mpf]
    advantage: mpf | None
    group: int
    trajectory: int = 0
    turns: Sequence[tuple[int, mpf]] = ()
    states: Sequence[int] = ()


Batch = list[Response]
Values = list[list[mpf]]
"""One number per response and token."""


def of(columns: Mapping[str, Any]) -> Batch:
    """The batch of an input; doubles are taken over exactly."""
    return [_response(columns, i) for i in range(len(columns["group_ids"]))]


def _response(columns: Mapping[str, Any], i: int) -> Response:
    rewards = columns.get("rewards", [0.0] * (i + 1))[i]
    given = columns.get("advantages")
    mask = columns["mask"][i]
    return Response(
        [_token(columns, i, t) for t in range(len(mask)) if mask[t]],
        [mpf(r) for r in (rewards if isinstance(rewards, list) else [rewards])],
        None if given is None else mpf(given[i]),
        columns["group_ids"][i],
    )


def _token(columns: Mapping[str, Any], i: int, t: int) -> Token:
    row = {name: mpf(columns[c][i][t]) if c in columns else mpf(0) for name, c in COLUMNS.items()}
    if "log_probs_old" not in columns:
        row["old"] = row["new"]
    return Token(t, **row, frozen=row["new"])


def moved(batch: Batch, i: int, t: int, step: mpf) -> Batch:
    """The batch with log π_θ of one token moved, and what is frozen left where it was."""
    copy = [replace(response, tokens=list(response.tokens)) for response in batch]
    token = copy[i].tokens[t]
    copy[i].tokens[t] = replace(token, new=token.new + step)
    return copy


def mean(numbers: list[mpf]) -> mpf:
    return sum(numbers, mpf(0)) / len(numbers)


def std(numbers: list[mpf], ddof: int) -> mpf:
    m = mean(numbers)
    return mp.sqrt(sum((x - m) ** 2 for x in numbers) / (len(numbers) - ddof))


def clamp(x: mpf, low: object, high: object) -> mpf:
    x = x if low is None else max(x, mpf(low))
    return x if high is None else min(x, mpf(high))
