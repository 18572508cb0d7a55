"""What verl's advantage estimators computed, found again for the rows of a policy loss."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import signature
from typing import Any, NamedTuple

import numpy as np

from grpo_cli.hooks.columns import Array, copied, number

_KEPT = 2
"""Generations that losses may still be computed of: verl trains one step off at most."""


class Generation(NamedTuple):
    """The responses that one call of an estimator saw.

    Attributes:
        columns: key of a record → [R] its values: rewards, the raw ones where the training says
            them, and groups where the estimator has uids.
        settings: the estimator's name and settings, by verl's names.
        number, size: the call, and how many responses it had.
        places: what tells a response from others → its places among them.
    """

    columns: Mapping[str, Sequence[Any]]
    settings: Mapping[str, Any]
    number: int
    size: int
    places: Mapping[bytes, deque[int]]


class Estimates:
    """Remembers the responses of the last calls of estimators, by the advantages they were given.

    A policy loss sees advantages and no rewards. Responses of the same length with the same
    advantages may be taken for each other, which changes nothing in what is replayed.
    """

    def __init__(self) -> None:
        self.functions: Mapping[str, Sequence[float]] = {}
        self.weights: Sequence[float] | None = None
        self._count = 0
        self._known: deque[Generation] = deque(maxlen=_KEPT)

    def of(
        self, estimator: Callable[..., Any], name: str, fail: Callable[[Exception], None]
    ) -> Any:
        """``estimator``, whose results are remembered under verl's ``name`` for it."""

        @wraps(estimator)
        def remembered(*args: Any, **kwargs: Any) -> Any:
            given = signature(estimator).bind(*args, **kwargs).arguments
            rewards = given.get("token_level_rewards")
            scores = None if rewards is None else copied(rewards.sum(dim=-1))  # some work in place
            result = estimator(*args, **kwargs)
            try:
                if scores is not None:
                    self._remember(name, given, scores, result[0])
            except Exception as error:
                fail(error)
            return result

        return remembered

    def _remember(self, name: str, given: Mapping[str, Any], scores: Array, found: Any) -> None:
        more = {**given.get("kwargs", {}), **given}
        settings: dict[str, Any] = {"adv_estimator": name}
        if more.get("norm_adv_by_std_in_grpo") is not None:
            settings["norm_adv_by_std_in_grpo"] = bool(more["norm_adv_by_std_in_grpo"])
        columns = {"rewards": scores.astype(float).tolist()}
        if more.get("index") is not None:
            columns["group_ids"] = [number(group) for group in more["index"]]
        for key, values in self.functions.items():
            columns[f"rewards/{key}"] = np.asarray(values, float).tolist()
        if self.functions and self.weights is not None:
            settings["reward_weights"] = [*map(float, self.weights)]
        self.functions = {}
        places: dict[bytes, deque[int]] = {}
        for row, seen in enumerate(_keys(copied(found), copied(given["response_mask"]))):
            places.setdefault(seen, deque()).append(row)
        self._known.append(Generation(columns, settings, self._count, len(scores), places))
        self._count += 1

    def find(
        self, advantages: Array, mask: Array
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
        """What a record says of its responses, and the settings; None where one is unknown."""
        keys = _keys(advantages, mask)
        for known in reversed(self._known):
            if not all(key in known.places for key in keys):
                continue
            rows = []
            for key in keys:  # responses that are alike take turns
                rows.append(known.places[key][0])
                known.places[key].rotate(-1)
            found = {name: [column[row] for row in rows] for name, column in known.columns.items()}
            place = {"generation": known.number, "rows": rows, "generation_size": known.size}
            return {**found, "bundle": place}, known.settings
        return None


def _keys(advantages: Array, mask: Array) -> list[bytes]:
    """[R] what tells responses from each other."""
    singles = np.where(mask != 0, advantages, 0.0).astype(np.float32)
    return [
        row.tobytes() + np.packbits(kept != 0).tobytes()
        for row, kept in zip(singles, mask, strict=True)
    ]
