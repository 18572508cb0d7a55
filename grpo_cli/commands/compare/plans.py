"""Which variants are compared, each with what it takes of the flags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from grpo_cli.errors import UsageError
from grpo_cli.hyperparameters import HyperparameterError, Value, canonical
from grpo_cli.variants import VARIANTS
from grpo_cli.variants.plan import Plan, plan

USUAL = "grpo,dr,dapo,bnpo,gspo,cispo"


def names(given: str) -> list[str]:
    """The variants that are asked for, each once, under the names that they are listed by."""
    found: dict[str, None] = {}
    for name in filter(None, (part.strip() for part in given.split(","))):
        found |= dict.fromkeys(_matching(name))
    if not found:
        raise UsageError("--variants: no name given")
    return list(found)


def _matching(name: str) -> Iterable[str]:
    if name == "all":
        return VARIANTS
    if any(mark in name for mark in "*?["):
        matching = [one for one in VARIANTS if fnmatchcase(one, name)]
        if not matching:
            raise UsageError(f"--variants: no variant matches {name!r}; see grpo variants")
        return matching
    return [plan(name).variant]


def plans(
    names: Iterable[str],
    stages: Mapping[str, str],
    hyperparameters: Mapping[str, object],
    batch: str,
) -> tuple[list[Plan], list[str]]:
    """Each variant with the hyperparameters that it takes; and notes on those that do not take one.

    Raises:
        UsageError: for a hyperparameter that none of them takes.
    """
    flags = _canonical(hyperparameters)
    bare = [plan(name, stages=stages, batch=batch) for name in names]
    notes = []
    for flag in flags:
        without = [one.variant for one in bare if flag not in one.takes()]
        if len(without) == len(bare):
            raise UsageError(f"{flag}: none of the variants takes it")
        if without:
            notes.append(f"{flag} is not for {', '.join(without)}")
    return [_with(one, flags) for one in bare], notes


def _with(bare: Plan, flags: Mapping[str, Value]) -> Plan:
    taken = bare.takes()
    own = {flag: value for flag, value in flags.items() if flag in taken}
    return plan(bare.variant, stages=bare.swapped, hyperparameters=own, batch=bare.batch)


def _canonical(given: Mapping[str, object]) -> Mapping[str, Value]:
    try:
        return canonical(given)
    except HyperparameterError as error:
        raise UsageError(str(error)) from None
