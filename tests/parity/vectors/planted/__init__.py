"""Faults planted in the plain loss, one for each flag: ``BUGS`` has the loss with it.

Each fault is the one that the flag's thread is about, in the piece of the loss it was in.
"""

from __future__ import annotations

from ..plain import Plain
from . import advantages, masks, metrics, policy, reduction, terms

MODULES = (reduction, masks, policy, terms, advantages, metrics)


def flag_of(bug: type) -> str:
    """``MeanOfMeans`` → ``mean-of-means``."""
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in bug.__name__).removeprefix("-")


BUGS: dict[str, type[Plain]] = {
    flag_of(bug): bug
    for module in MODULES
    for bug in vars(module).values()
    if isinstance(bug, type) and issubclass(bug, Plain) and bug.__module__ == module.__name__
}
"""Flag → the loss with that fault."""
