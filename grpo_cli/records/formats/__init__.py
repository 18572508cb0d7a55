"""What trainers and inference servers write, one module each; a new format is a new row.

A format is recognised by the keys of an object, and then by what stands there. Records under the
names of ``records.fields`` need none of this: for them recognition is one look-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from grpo_cli.records.formats.atif import ATIF
from grpo_cli.records.formats.columns import COLUMNS
from grpo_cli.records.formats.engines import CHAT, COMPLETION, SGLANG
from grpo_cli.records.formats.format import Format, Object, Translated
from grpo_cli.records.formats.nemo_rl import NEMO_RL
from grpo_cli.records.formats.open_instruct import OPEN_INSTRUCT
from grpo_cli.records.formats.prime_rl import PRIME_RL
from grpo_cli.records.formats.roll import ROLL_BOARD
from grpo_cli.records.formats.slime import MILES, SLIME
from grpo_cli.records.formats.texts import TEXTS
from grpo_cli.records.formats.unipo import UNIPO
from grpo_cli.records.formats.verifiers import VERIFIERS

_ALL = (
    *(NEMO_RL, PRIME_RL, OPEN_INSTRUCT, ROLL_BOARD, COLUMNS, UNIPO, VERIFIERS, SLIME, MILES),
    *(ATIF, CHAT, COMPLETION, SGLANG, *TEXTS),
)
FORMATS: Mapping[str, Format] = {one.name: one for one in _ALL}

CANONICAL = "canonical"
"""What ``--from`` calls records under the names that need no translation."""


@lru_cache(maxsize=1024)
def candidates(keys: tuple[str, ...]) -> tuple[Format, ...]:
    """The formats that an object with these keys may be of."""
    own = set(keys)
    return tuple(one for one in _ALL if any(wanted <= own for wanted in one.keys))


def recognise(value: Object) -> Format | None:
    """The format of an object; None for a canonical record, or one that nothing is known of."""
    return next((one for one in candidates(tuple(value)) if one.fits(value)), None)


__all__ = ["CANONICAL", "FORMATS", "Format", "Translated", "candidates", "recognise"]
