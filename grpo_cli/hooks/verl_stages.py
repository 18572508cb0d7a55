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


class Row(NamedTuple):
    """A response as an estimator saw it.

    Attributes:
        generation, row, size: the call of the estimator, the response's place in it, and how many
            responses it had.
        reward: the sum of its tokens' rewards.
        group: its uid; None where the estimator has none.
        functions: what each reward function returned for it, where the training says so.
        settings: the estimator's name and settings, by verl's names.
    """

    generation: int
    row: int
    size: int
    reward: float
    group: Any
    functions: Mapping[str, float]
    settings: Mapping[str, Any]


class Estimates:
    """Remembers the responses of the last calls of estimators, by the advantages they were given.

    A policy loss sees advantages and no rewards. Responses of the same length with the same
    advantages may be taken for each other, which changes nothing in what is replayed.
    """

    def __init__(self) -> None:
        self.functions: Mapping[str, Sequence[float]] = {}
        self.weights: Sequence[float] | None = None
        self._generation = -1
        self._known: deque[dict[bytes, deque[Row]]] = deque(maxlen=_KEPT)

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
        self._generation += 1
        settings: dict[str, Any] = {"adv_estimator": name}
        more = given.get("kwargs", {})
        normalised = given.get("norm_adv_by_std_in_grpo", more.get("norm_adv_by_std_in_grpo"))
        if normalised is not None:
            settings["norm_adv_by_std_in_grpo"] = bool(normalised)
        functions = {key: np.asarray(values, float) for key, values in self.functions.items()}
        if functions and self.weights is not None:
            settings["reward_weights"] = [*map(float, self.weights)]
        self.functions = {}
        groups, size = given.get("index", more.get("index")), len(scores)
        rows: dict[bytes, deque[Row]] = {}
        for row, key in enumerate(_keys(copied(found), copied(given["response_mask"]))):
            group = None if groups is None else number(groups[row])
            own = {name: float(values[row]) for name, values in functions.items()}
            made = Row(self._generation, row, size, float(scores[row]), group, own, settings)
            rows.setdefault(key, deque()).append(made)
        self._known.append(rows)

    def find(self, advantages: Array, mask: Array) -> list[Row] | None:
        """[R] the responses of a loss as their estimator saw them; None where one is unknown."""
        keys = _keys(advantages, mask)
        for known in reversed(self._known):
            if all(key in known for key in keys):
                found = []
                for key in keys:  # responses that are alike take turns
                    found.append(known[key][0])
                    known[key].rotate(-1)
                return found
        return None


def of_rows(rows: Sequence[Row]) -> dict[str, Any]:
    """What a record says of its responses: rewards, groups, and their places in the bundle."""
    found: dict[str, Any] = {"rewards": [row.reward for row in rows]}
    if all(row.group is not None for row in rows):
        found["group_ids"] = [row.group for row in rows]
    for name in rows[0].functions:
        found[f"rewards/{name}"] = [row.functions[name] for row in rows]
    first = rows[0]
    place = {"generation": first.generation, "rows": [row.row for row in rows]}
    return found | {"bundle": {**place, "generation_size": first.size}}


def _keys(advantages: Array, mask: Array) -> list[bytes]:
    """[R] what tells responses from each other."""
    singles = np.where(mask != 0, advantages, 0.0).astype(np.float32)
    return [
        row.tobytes() + np.packbits(kept != 0).tobytes()
        for row, kept in zip(singles, mask, strict=True)
    ]
