"""Several reward functions that count unequally: any advantage, with a weight for each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.hyperparameters import HyperparameterError, Value
from grpo_cli.objective.arithmetic.groups import Penalised
from grpo_cli.objective.choice import Choice, keyword_only, optional, positional

WEIGHTS = "reward_weights"
_SUMS = ("rewards", "task_rewards")
_EACH = "reward_columns"
_PENALTIES = "penalties"


def can_be_weighed(choice: Choice) -> bool:
    """Whether the weights of reward functions change the advantage."""
    return any(name in (*_SUMS, _EACH) for name in choice.columns)


def weighed(choice: Choice) -> Choice:
    """The choice with the hyperparameter ``reward_weights``: r = Σₖ wₖ·rₖ in the place of Σₖ rₖ.

    A choice that normalises each function by itself (GDPO) reads the weights as a column of that
    name, and adds up with them afterwards.

    Args:
        choice: an advantage that reads rewards.

    Raises:
        HyperparameterError: for one that counts all functions alike.

    References:
        TRL's ``reward_weights``, verl's ``gdpo_reward_weights``.
    """
    if _EACH in choice.columns and WEIGHTS not in choice.columns:
        raise HyperparameterError(WEIGHTS, "this advantage counts all reward functions alike")
    if id(choice) not in _MADE:
        measure = None if choice.measure is None else _Weighed(choice.measure)
        _MADE[id(choice)] = (
            choice,
            replace(choice, function=_Weighed(choice.function), measure=measure),
        )
    return _MADE[id(choice)][1]


_MADE: dict[int, tuple[Choice, Choice]] = {}


@dataclass(frozen=True)
class _Weighed:
    """A function of rewards, with weights for the reward functions."""

    function: Callable[..., Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "__doc__", self.function.__doc__)  # what explain shows of it

    @property
    def columns(self) -> tuple[str, ...]:
        """What it reads: the function's columns, each reward function's, and a KL's penalties."""
        own = tuple(name for name in positional(self.function) if name != WEIGHTS)
        return (*own, *(name for name in (_EACH, _PENALTIES) if name not in own))

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """The function's, and the weights."""
        return (*keyword_only(self.function), WEIGHTS)

    @property
    def optional(self) -> frozenset[str]:
        """The function's, but for the columns that rewards are in."""
        return (optional(self.function) - {*_SUMS, _EACH, WEIGHTS}) | {_PENALTIES}

    def __call__(self, *columns: Any, reward_weights: Value, **values: Value) -> Any:
        named = dict(zip(self.columns, columns, strict=True))
        each: F64 = named[_EACH]
        total = summed(each, reward_weights)
        named |= {"rewards": total, "task_rewards": total}
        named[WEIGHTS] = read(reward_weights, each.shape[1])
        if (penalties := named[_PENALTIES]) is not None:  # what a KL took off stays off
            named["rewards"] = total - penalties
            if "groups" in named:
                named["groups"] = Penalised(named["groups"], named["rewards"], total, penalties)
        return self.function(*(named[name] for name in positional(self.function)), **values)


def summed(each: F64, reward_weights: Value) -> F64:
    """[R] Σₖ wₖ·rₖ; what gave no reward counts nothing."""
    return np.nansum(each * read(reward_weights, each.shape[1]), axis=1)


def read(reward_weights: Value, functions: int) -> F64:
    """[K] the weights.

    Raises:
        HyperparameterError: where there are not as many as reward functions.
    """
    weights = np.array([float(part) for part in str(reward_weights).split(",")])
    if len(weights) != functions:
        raise HyperparameterError(
            WEIGHTS,
            f"expected as many as there are reward functions, {functions}, got {len(weights)}",
        )
    return weights
