"""What a hyperparameter may be."""

from __future__ import annotations

import math
from typing import NamedTuple

from grpo_cli.errors import GrpoError

Value = float | int | str | None


class HyperparameterError(GrpoError):
    """A hyperparameter's value outside its meaning; the caller adds the place."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name
        self.message = message


class Hyperparameter(NamedTuple):
    """What a hyperparameter may be.

    Args:
        meaning: one line for ``grpo explain`` and for messages.
        low: the least value.
        open_low: whether ``low`` itself is excluded.
        high: the greatest value.
        integer: whether only whole numbers are allowed.
        words: the words it may be, for one that is not a number.
        optional: whether None ("off") is allowed.
        aliases: the frameworks' names for the same thing.
    """

    meaning: str
    low: float = -math.inf
    open_low: bool = False
    high: float = math.inf
    integer: bool = False
    words: tuple[str, ...] = ()
    optional: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def wanted(self) -> str:
        """The allowed values in words."""
        if self.words:
            return "one of " + ", ".join(self.words)
        kind = "a whole number" if self.integer else "a finite number"
        if self.low > -math.inf:
            kind += f" {'>' if self.open_low else '>='} {self.low:g}"
        if self.high < math.inf:
            kind += f"{' and' if self.low > -math.inf else ''} <= {self.high:g}"
        return kind + (" or null" if self.optional else "")

    def check(self, name: str, value: object) -> Value:
        """Returns ``value`` if it is allowed.

        Raises:
            HyperparameterError: with what was expected and what came.
        """
        if value is None and self.optional:
            return None
        if self.words:
            if isinstance(value, str) and value in self.words:
                return value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            inside = self.low < value if self.open_low else self.low <= value
            if math.isfinite(value) and inside and value <= self.high:
                if not self.integer:
                    return float(value)
                if float(value).is_integer():
                    return int(value)
        raise HyperparameterError(name, f"expected {self.wanted}, got {_show(value)}")


def _show(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return "NaN" if value != value else f"{value}"
