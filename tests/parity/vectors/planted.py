"""Faults planted in the plain loss: ``BUGS`` has the loss with each mistake of the catalogue.

Each fault is the one that its row's thread is about, in the piece of the loss it was in. A form of
a fault is a table: a method of the loss → what it is replaced by, which gets the loss, the right
method, and the method's arguments. What fails with it is in ``v1/fails.json``, by which a failing
run is named.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..plain import Plain
from .counts import ADVANTAGES, MASKS, METRICS, SUMS
from .loss import CORRECTIONS, KLS, RATIOS, SURROGATES, Form


def _planted(form: Form) -> type[Plain]:
    def method(name: str, wrong: Callable[..., Any]) -> Callable[..., Any]:
        right = getattr(Plain, name)
        return lambda loss, *given: wrong(loss, partial(right, loss), *given)

    return type("Planted", (Plain,), {name: method(name, wrong) for name, wrong in form.items()})


_TABLES = (RATIOS, SURROGATES, KLS, CORRECTIONS, SUMS, MASKS, ADVANTAGES, METRICS)
BUGS = {name: [*map(_planted, forms)] for table in _TABLES for name, forms in table.items()}
"""Mistake → the loss with it, in each of its forms."""
