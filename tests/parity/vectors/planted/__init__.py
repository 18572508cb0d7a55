"""Faults planted in the plain loss: ``BUGS`` has the loss with each mistake of the catalogue.

Each fault is the one that its row's thread is about, in the piece of the loss it was in. What fails
with it is written into ``v1/fails.json``, by which a failing run is named.
"""

from __future__ import annotations

from ..plain import Plain
from . import (
    advantages,
    masks,
    metrics,
    penalties,
    policy,
    ratios,
    reduction,
    rewards,
    sums,
    terms,
)

MODULES = (
    *(reduction, sums, masks, policy, ratios, terms, penalties),
    *(advantages, rewards, metrics),
)


def mistake_of(bug: type) -> str:
    """``MeanOfMeans2`` → ``mean-of-means``."""
    dashed = "".join(f"-{c.lower()}" if c.isupper() else c for c in bug.__name__)
    return dashed.removeprefix("-").rstrip("0123456789")


def _planted() -> dict[str, list[type[Plain]]]:
    found: dict[str, list[type[Plain]]] = {}
    for module in MODULES:
        for name, bug in vars(module).items():
            own = isinstance(bug, type) and bug.__module__ == module.__name__
            if own and issubclass(bug, Plain) and not name.startswith("_"):
                found.setdefault(mistake_of(bug), []).append(bug)
    return found


BUGS = _planted()
"""Mistake → the loss with it, in each of its forms."""
