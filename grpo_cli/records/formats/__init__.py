"""What trainers and inference servers write: every file here that has ``FORMATS``.

A format is recognised by the keys of an object, and then by their values. Records under the
names of ``records.fields`` need none of this: for them recognition is one look-up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from itertools import chain
from pkgutil import iter_modules

from grpo_cli.records.formats.format import Format, Translated

_MODULES = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
_STATED = chain.from_iterable(getattr(module, "FORMATS", ()) for module in _MODULES)
_ALL: Sequence[Format] = sorted(_STATED, key=lambda one: (one.rank, one.name))
FORMATS: Mapping[str, Format] = {one.name: one for one in _ALL}

CANONICAL = "canonical"
"""What ``--from`` calls records under the names that need no translation."""


@lru_cache(maxsize=1024)
def candidates(keys: tuple[str, ...]) -> tuple[Format, ...]:
    """The formats that an object with these keys may be of."""
    own = set(keys)
    fit = [one for one in _ALL if any(wanted <= own for wanted in one.keys)]
    return tuple(one for one in fit if not one.without & own)


__all__ = ["CANONICAL", "FORMATS", "Format", "Translated", "candidates"]
