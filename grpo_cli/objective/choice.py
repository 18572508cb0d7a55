"""A choice at a stage: a pure function, and the same with its hyperparameters bound."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import FunctionType
from typing import Any, Literal

from grpo_cli.hyperparameters import HYPERPARAMETERS, HyperparameterError, Value


@dataclass(frozen=True)
class Choice:
    """A stage function, and the values its hyperparameters have when a flag swaps it in.

    The function's positional parameters name the columns it reads (``Columns``), its keyword-only
    parameters are its hyperparameters; it has no defaults of its own, but for ``= None`` on a
    column that the records may lack.

    Args:
        function: the pure function.
        defaults: hyperparameter → value, for those that have a usual value; one that has none
            must be given by a flag, the record or the variant.
        measure: for a stage that needs statistics of the whole batch: a function of columns that
            returns the sample (values [S], multiplicities [S], record of each [S]) whose moments
            the function then reads as the column ``moments``. Its keyword-only parameters are
            among the function's.
        absent: whether it stands for no stage at all: no KL, no correction.
        given: whether it takes what the record gives, advantages or ratios, as it is.
        in_reward: for a KL: whether it is taken off the reward, not off the objective.
        per_response: for a ratio: whether a response has one; trainers log its mean over responses.
        window: for a surrogate that holds the ratio within [1 − epsilon_low, 1 + epsilon_high]:
            "product" where the smaller of both products counts (PPO's clip), "weight" where the
            bounded ratio is a constant weight (CISPO); None for another kind of bound.
        total: for an aggregation: whether it adds token terms up instead of averaging them.
        stops_gradient: where the slope leaves out a part of the derivative on purpose: which.
    """

    function: Callable[..., Any]
    defaults: Mapping[str, Value] = field(default_factory=dict)
    measure: Callable[..., Any] | None = None
    absent: bool = False
    given: bool = False
    in_reward: bool = False
    per_response: bool = False
    window: Literal["product", "weight"] | None = None
    total: bool = False
    stops_gradient: str = ""

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that the function reads."""
        return positional(self.function)

    @cached_property
    def optional(self) -> frozenset[str]:
        """The columns that the function can do without; it gets None for them then."""
        return optional(self.function)

    @cached_property
    def hyperparameters(self) -> tuple[str, ...]:
        """The hyperparameters that the function takes."""
        return keyword_only(self.function)

    @property
    def penalizes_reference(self) -> bool:
        """For a KL: whether it is a penalty in the loss on the distance to the reference."""
        needed = {*self.columns} - self.optional
        return not self.in_reward and bool(needed & {"log_ratio_ref", "log_probs_ref"})

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]


def positional(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's positional parameters; of one made of another, its columns."""
    if hasattr(function, "columns"):
        return tuple(function.columns)
    code = _innermost(function).__code__
    return code.co_varnames[: code.co_argcount]


def keyword_only(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's keyword-only parameters: its hyperparameters."""
    if hasattr(function, "hyperparameters"):
        return tuple(function.hyperparameters)
    code = _innermost(function).__code__
    return code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]


def optional(function: Callable[..., Any]) -> frozenset[str]:
    """The names of those positional parameters that may be None, its only default."""
    if hasattr(function, "optional"):
        return frozenset(function.optional)
    columns, count = positional(function), len(_innermost(function).__defaults__ or ())
    return frozenset(columns[len(columns) - count :])


def takes_none(function: Callable[..., Any], name: str) -> bool:
    """Whether a hyperparameter may be None; of a function made of another it is not known."""
    return "None" in str(_innermost(function).__annotations__.get(name, "None"))


def _innermost(function: Callable[..., Any]) -> FunctionType:
    """What has the names; they are read off its code, which saves 4 ms of every start."""
    found: Any = inspect.unwrap(function)
    return found


@dataclass(frozen=True)
class Bound:
    """A choice with values for its hyperparameters.

    One that has no usual value may be missing in a row of a table; a flag or the record must give
    it then.

    Raises:
        TypeError: when a hyperparameter is not taken; a row of a table is wrong then.
        HyperparameterError: for a value that is not allowed, or null where one is needed.
    """

    name: str
    choice: Choice
    values: Mapping[str, Value]

    @cached_property
    def key(self) -> tuple[str, tuple[tuple[str, Value], ...]]:
        """What it is, to be looked up."""
        return self.name, tuple(self.values.items())

    def __post_init__(self) -> None:
        wanted = self.choice.hyperparameters
        if not set(self.values) <= set(wanted):
            raise TypeError(f"{self.name} takes {sorted(wanted)}, got {sorted(self.values)}")
        given = [name for name in wanted if name in self.values]
        checked = {name: HYPERPARAMETERS[name].check(name, self.values[name]) for name in given}
        for name, value in checked.items():
            if value is None and not takes_none(self.choice.function, name):
                raise HyperparameterError(name, f"{self.name} needs a value here, got null")
        object.__setattr__(self, "values", checked)
