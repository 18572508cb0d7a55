"""Hyperparameters as they are given, under their one name each."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from grpo_cli.objective.hyperparameter import HyperparameterError, Value
from grpo_cli.objective.hyperparameter_table import HYPERPARAMETERS

SETS = {"epsilon": ("epsilon_low", "epsilon_high")}
"""Names that set several at once."""

_ALIASES = {alias: name for name, row in HYPERPARAMETERS.items() for alias in row.aliases}
_SET_ALIASES = {"clip_ratio": "epsilon", "eps_clip": "epsilon", "clip_epsilon": "epsilon"}

KNOWN = frozenset({*HYPERPARAMETERS, *SETS, *_ALIASES, *_SET_ALIASES})
"""Every name a hyperparameter may be given by."""


def canonical(values: Mapping[str, object]) -> dict[str, Value]:
    """Checks hyperparameters and returns them under their canonical names.

    A name that sets several (``epsilon``) gives way to the particular ones beside it; an
    ``epsilon_high`` of null is not set.

    Raises:
        HyperparameterError: for an unknown name (the near match is named) or a value outside its
            meaning.
    """
    broad: dict[str, Value] = {}
    exact: dict[str, Value] = {}
    for given, value in values.items():
        name = _SET_ALIASES.get(given, _ALIASES.get(given, given))
        if value is None and name == "epsilon_high":
            continue  # the frameworks' way to write: as epsilon_low
        if name in SETS:
            for one in SETS[name]:
                broad[one] = HYPERPARAMETERS[one].check(given, value)
            continue
        if name not in HYPERPARAMETERS:
            raise HyperparameterError(given, unknown(given))
        exact[name] = HYPERPARAMETERS[name].check(given, value)
    return broad | exact


def unknown(name: str) -> str:
    """What to say of a hyperparameter that nobody knows."""
    near = get_close_matches(name, sorted(KNOWN), n=1, cutoff=0.6)
    known = ", ".join(sorted(HYPERPARAMETERS))
    hint = f"; did you mean {near[0]}?" if near else f"; known are {known}"
    return f"unknown hyperparameter{hint}"
