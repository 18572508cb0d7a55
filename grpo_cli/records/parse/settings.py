"""A record's hyperparameters, wherever it gives them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import HyperparameterError, Value, canonical
from grpo_cli.records.fields import Fields
from grpo_cli.records.places import got

NO_SETTINGS: Mapping[str, Value] = {}
_Given = tuple[tuple[str, str, object], ...]  # path, name, value


def read_settings(record: Mapping[str, object], fields: Fields) -> Mapping[str, Value]:
    """The hyperparameters under their canonical names, in a fixed order.

    Records of one run share them, so the answer is cached: do not change it.

    Raises:
        InputError: for an unknown name, a value outside its meaning, or two different values.
    """
    key = fields.names.get("hyperparameters")
    if key is None and not fields.hyperparameters:
        return NO_SETTINGS
    nested = record[key] if key is not None else {}
    if not isinstance(nested, dict):
        raise InputError(f"expected an object, got {got(nested)}", path=key or "")
    given = [(name, name, record[name]) for name in fields.hyperparameters]
    given += [(f"{key}.{name}", name, value) for name, value in nested.items()]
    if _framework(record).get("name") == "verl":  # clip_ratio replaces null sides alone
        both = next((value for _, name, value in given if name == "clip_ratio"), None)
        given = [
            (path, name, both if value is None and name in _VERL_SIDES else value)
            for path, name, value in given
            if name != "clip_ratio"
        ]
    # True == 1, so a cache that did not see the types would take one for the other.
    types = tuple([type(value) for *_, value in given])
    try:
        return _read_cached(tuple(given), types)
    except TypeError:  # a list or an object cannot be a cache's key
        return _read(tuple(given))


_VERL_SIDES = ("clip_ratio_low", "clip_ratio_high")
"""They are 0.2 where verl's configuration does not say."""


def trainer_weights(record: Mapping[str, Any], functions: int) -> Mapping[str, Value]:
    """The weights of several reward functions, where the record's ``framework`` gives them.

    That is how TRL's settings say it. Rewards that are one number have the weights in them already.

    Raises:
        InputError: for weights that are none, or another number of them than reward functions.
    """
    weights = _framework(record).get("reward_weights")
    if weights is None:
        return NO_SETTINGS
    path = "framework.reward_weights"
    found = _canonical(path, "reward_weights", weights)
    if (given := str(found["reward_weights"]).count(",") + 1) != functions:
        raise InputError(f"expected {functions} (one per reward function), got {given}", path=path)
    return found


def _framework(record: Mapping[str, object]) -> Mapping[str, object]:
    framework = record.get("framework")
    return framework if isinstance(framework, dict) else {}


@lru_cache(maxsize=1024)
def _read_cached(given: _Given, types: tuple[type, ...]) -> Mapping[str, Value]:
    del types
    return _read(given)


def _read(given: _Given) -> Mapping[str, Value]:
    broad: dict[str, tuple[Value, str]] = {}
    exact: dict[str, tuple[Value, str]] = {}
    for path, name, value in given:
        values = _canonical(path, name, value)
        for own, one in values.items():
            before, where = (exact if len(values) == 1 else broad).setdefault(own, (one, path))
            if before != one:
                contradiction = f"{got(one)} contradicts {where}, which is {got(before)}"
                raise InputError(contradiction, path=path)
    return {name: value for name, (value, _) in sorted((broad | exact).items())}


def _canonical(path: str, name: str, value: object) -> Mapping[str, Value]:
    try:
        return canonical({name: value})
    except HyperparameterError as error:
        raise InputError(error.message, path=path) from None
