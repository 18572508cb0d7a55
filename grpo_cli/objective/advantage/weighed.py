"""Several reward functions that count unequally: any advantage, with a weight for each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.hyperparameters import HyperparameterError, Value
from grpo_cli.objective.arithmetic.groups import Penalised
from grpo_cli.objective.choice import Choice, Composed, Parameters, call, parameters

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
        raise HyperparameterError(WEIGHTS, "this advantage weights all reward functions equally")
    if id(choice) not in _MADE:
        measure = None if choice.measure is None else _weighed(choice.measure)
        made = replace(choice, function=_weighed(choice.function), measure=measure)
        _MADE[id(choice)] = choice, made
    return _MADE[id(choice)][1]


_MADE: dict[int, tuple[Choice, Choice]] = {}


def _weighed(function: Callable[..., Any]) -> Composed:
    """A function of rewards, with weights for the reward functions."""
    own = parameters(function)
    read = tuple(name for name in own.columns if name != WEIGHTS)
    takes = Parameters(
        (*read, *(name for name in (_EACH, _PENALTIES) if name not in read)),
        (own.optional - {*_SUMS, _EACH, WEIGHTS}) | {_PENALTIES},
        (*own.hyperparameters, WEIGHTS),
        own.nullable,
        own.levels,
    )

    def run(columns: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
        each: F64 = columns[_EACH]
        weights = values[WEIGHTS]
        total = summed(each, weights)
        named = {**columns, "rewards": total, "task_rewards": total}
        named[WEIGHTS] = read_weights(weights, each.shape[1])
        if (penalties := named[_PENALTIES]) is not None:  # what a KL took off stays off
            named["rewards"] = total - penalties
            if "groups" in named:
                named["groups"] = Penalised(named["groups"], named["rewards"], total, penalties)
        return call(function, named, values)

    return Composed(takes, run, function.__doc__)


def summed(each: F64, reward_weights: Value) -> F64:
    """[R] Σₖ wₖ·rₖ; what gave no reward counts nothing."""
    return np.nansum(each * read_weights(reward_weights, each.shape[1]), axis=1)


def read_weights(reward_weights: Value, functions: int) -> F64:
    """[K] the weights.

    Raises:
        HyperparameterError: where there are not as many as reward functions.
    """
    weights = np.array([float(part) for part in str(reward_weights).split(",")])
    if len(weights) != functions:
        raise HyperparameterError(
            WEIGHTS,
            f"expected one weight per reward function, {functions}, got {len(weights)}",
        )
    return weights
