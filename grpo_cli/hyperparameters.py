"""The hyperparameters of the family: each one's name, what it may be, what others call it.

A new one is a row of ``hyperparameters.json``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from grpo_cli.errors import GrpoError, is_one_slip, nearest

Value = float | int | str | None

_MOST = 2**63 - 1
"""The greatest whole number that arrays and every output hold."""


class HyperparameterError(GrpoError):
    """A hyperparameter's value out of range; the caller adds the place."""

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
        integer: whether only whole numbers are allowed; without ``high``, those of 64 bits.
        words: the words it may be, for one that is not a number.
        several: whether it may be several of the words, or numbers, joined by commas; a list too.
        form: a regular expression of the texts that it may be instead of a number.
        form_text: what such a text is, for messages.
        optional: whether None ("off") is allowed.
        called: the frameworks' names for the same thing, in one text.
        counts: what of an optimiser step it counts, over all processes: "tokens", "responses",
            "microbatches", "ranks", the microbatches of a "generation", or the "tokens at a time"
            of the micro-batches that the ranks evaluate side by side; "" for none of it.
    """

    meaning: str
    low: float = -math.inf
    open_low: bool = False
    high: float = math.inf
    integer: bool = False
    words: tuple[str, ...] = ()
    several: bool = False
    form: str = ""
    form_text: str = ""
    optional: bool = False
    called: str = ""
    counts: str = ""

    @property
    def aliases(self) -> tuple[str, ...]:
        """The frameworks' names for the same thing."""
        return tuple(self.called.split())

    @property
    def wanted(self) -> str:
        """The allowed values in words."""
        if self.words:
            ending = ", or several joined by commas" if self.several else ""
            return "one of " + ", ".join(self.words) + ending
        kind = "a whole number" if self.integer else "a finite number"
        if self.low > -math.inf:
            kind += f" {'>' if self.open_low else '>='} {self.low:g}"
        if self.high < math.inf:
            high = self.high if isinstance(self.high, int) else f"{self.high:g}"
            kind += f"{' and' if self.low > -math.inf else ''} <= {high}"
        kind += f", or {self.form_text}" if self.form else ""
        return kind + (" or null" if self.optional else "")

    def check(self, name: str, value: object) -> Value:
        """Returns ``value`` if it is allowed.

        Raises:
            HyperparameterError: with what was expected and what came.
        """
        if value is None and self.optional:
            return None
        if self.form and self.several and isinstance(value, list | tuple):
            value = ",".join(map(_show, value))
        if self.words:
            if isinstance(value, bool):
                value = str(value).lower()
            given = value.split(",") if self.several and isinstance(value, str) else [value]
            if isinstance(value, str) and set(given) <= set(self.words):
                return value
        elif isinstance(value, str) and self.form and re.fullmatch(self.form, value):
            return ",".join(map(_shortest, value.split(","))) if self.several else value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            try:
                float(value)
            except OverflowError:  # an integer beyond all floats
                value = math.inf if value > 0 else -math.inf
            inside = self.low < value if self.open_low else self.low <= value
            if math.isfinite(value) and inside and value <= self.high:
                if not self.integer:
                    return float(value)
                if float(value).is_integer():
                    if value > _MOST and self.high == math.inf:
                        wanted = self._replace(high=_MOST).wanted
                        raise HyperparameterError(name, f"expected {wanted}, got {_show(value)}")
                    return int(value)
        raise HyperparameterError(name, f"expected {self.wanted}, got {_show(value)}")


def _shortest(number: str) -> str:
    """A number in its shortest text, so that 1 and 1.0 have one signature."""
    value = float(number)
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def _show(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        number = re.fullmatch(f"[+-]?{_NUMBER}", value)
        return repr(value) + (" (a value in quotes; write it without them)" if number else "")
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return "NaN" if value != value else f"{value}"


_NUMBER = r"[0-9.]+(?:e[+-]?[0-9]+)?"
_BOUNDS = rf"(?:{_NUMBER}_)?{_NUMBER}"
_FORMS = {
    "bounds": _BOUNDS,
    "several bounds": f"{_BOUNDS}(,{_BOUNDS})*",
    "numbers": rf"[+-]?{_NUMBER}(?:,[+-]?{_NUMBER})*",
}


def _read_rows() -> dict[str, Hyperparameter]:
    """The rows of ``hyperparameters.json``; ``above`` there is a ``low`` that is excluded."""
    rows = json.loads(Path(__file__).with_suffix(".json").read_bytes())
    found = {}
    for name, row in rows.items():
        if "above" in row:
            row |= {"low": row.pop("above"), "open_low": True}
        words, form = tuple(row.pop("words", ())), _FORMS.get(row.pop("form", ""), "")
        found[name] = Hyperparameter(**row, words=words, form=form)
    return found


HYPERPARAMETERS: Mapping[str, Hyperparameter] = _read_rows()

SETS = {"epsilon": ("epsilon_low", "epsilon_high")}
"""Names that set several at once."""

_ALIASES = {alias: name for name, row in HYPERPARAMETERS.items() for alias in row.aliases}
_SET_ALIASES = {"clip_ratio": "epsilon", "eps_clip": "epsilon", "clip_epsilon": "epsilon"}

KNOWN = frozenset({*HYPERPARAMETERS, *SETS, *_ALIASES, *_SET_ALIASES})
"""Every name a hyperparameter may be given by."""

SWITCHES = {"kl_loss_coef": "use_kl_loss"}
"""A setting of verl, slime and ROLL → the one that is false where it is not used."""

HOLDERS = (
    *("settings", "config", "args", "arguments", "training_args"),
    *("params", "parameters", "hparams", "hyperparams"),
)
"""Keys under which dumps have a trainer's configuration; ``hyperparameters`` goes before them."""


def canonical(values: Mapping[str, object]) -> dict[str, Value]:
    """Checks hyperparameters and returns them under their canonical names.

    A name that sets several (``epsilon``) gives way to the particular ones; an
    ``epsilon_high`` or ``reward_weights`` of null is not set.

    Raises:
        HyperparameterError: for an unknown name (the near match is named) or a value outside its
            meaning.
    """
    broad: dict[str, Value] = {}
    exact: dict[str, Value] = {}
    for given, value in values.items():
        name = _SET_ALIASES.get(given, _ALIASES.get(given, given))
        if value is None and name in _OFF:
            continue
        if name in SETS:
            if isinstance(value, list):
                wanted = f"{HYPERPARAMETERS[SETS[name][0]].wanted}, got a list"
                raise HyperparameterError(
                    given, f"expected {wanted}; its values are {' and '.join(SETS[name])}"
                )
            for one in SETS[name]:
                broad[one] = HYPERPARAMETERS[one].check(given, value)
            continue
        if name not in HYPERPARAMETERS:
            raise HyperparameterError(given, unknown(given))
        exact[name] = HYPERPARAMETERS[name].check(given, value)
    return broad | exact


_OFF = ("epsilon_high", "reward_weights")
"""Those that frameworks write as null: as ``epsilon_low``, and weights of 1."""
_BOTH = "epsilon (which is epsilon_low and epsilon_high)"
_MEANT = dict.fromkeys(("clip", "clip_range", "cliprange", "clip_eps", "ppo_clip"), _BOTH)
_MEANT["eps"] = "epsilon (of the clip) or std_eps (of the advantages)"
"""Words that others have for a hyperparameter, and that are nearer to another one's name."""


def misspelt(name: str) -> str:
    """The hyperparameter that an unknown name is another word for, or one letter off; or ""."""
    if (last := name.rpartition(".")[2]) in KNOWN:
        return last
    plain = _plain(name)
    near = [one for one in sorted(KNOWN) if _plain(one) == plain or is_one_slip(name, one)]
    return "" if name in _OTHERS else _MEANT.get(name) or next(iter(near), "")


_OTHERS = frozenset({"betas"})
"""Settings of an optimiser, one letter off a hyperparameter."""


def _plain(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def parameter_of(name: str) -> str:
    """The hyperparameter that a word is a name of, or of one alone the last part; "" for none."""
    found = _SET_ALIASES.get(name, _ALIASES.get(name, name))
    ends = [one for one in HYPERPARAMETERS if one.endswith(f"_{name}")]
    return found if found in (*SETS, *HYPERPARAMETERS) else ends[0] if len(ends) == 1 else ""


def unknown(name: str, read: str = "") -> str:
    """What to say of a hyperparameter that nobody knows: a near one, else which are ``read``."""
    near = _MEANT.get(name) or nearest(name, sorted(KNOWN))
    others = f"{read}; " if read else ""
    all_of_them = f"{others}grpo variants --hyperparameters lists all"
    return f"unknown hyperparameter; {f'did you mean {near}?' if near else all_of_them}"
