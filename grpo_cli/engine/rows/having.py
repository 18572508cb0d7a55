"""``--having``: which rows of output are wanted, in the language of ``--where``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.engine.rows.fields import SHARES, SIDES, Level
from grpo_cli.engine.rows.rows import all_columns
from grpo_cli.engine.rows.source import Source
from grpo_cli.errors import UsageError, nearest
from grpo_cli.records.choose.where import Condition, read_conditions, spelled


class Having(NamedTuple):
    """What rows of a level must hold. It travels between processes.

    Attributes:
        level: of the rows.
        conditions: all of them; each path begins with the name of a column.
    """

    level: Level
    conditions: tuple[Condition, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are read."""
        return tuple(str(one.path[0]) for one in self.conditions)

    @property
    def needs_shares(self) -> bool:
        """Whether it reads a share."""
        return bool({*SHARES} & {*self.names})

    def mask(self, source: Source) -> NDArray[np.bool_]:
        """Whether each row of the level is wanted."""
        found = all_columns(source, self.level, self.names)
        wanted = np.ones(source.count(self.level), dtype=np.bool_)
        for name, condition in zip(self.names, self.conditions, strict=True):
            column, within = found[name], condition._replace(path=condition.path[1:])
            values = column.values
            if values is None:
                wanted &= condition.compares(None)
                continue
            if not isinstance(values, np.ndarray):
                fits = np.array([within.holds(value) for value in values], dtype=np.bool_)
            elif name == "clip":
                fits = np.array([within.compares(side) for side in SIDES.tolist()])[values]
            else:
                fits = within.fits(values)
            wanted &= fits if column.owners is None else column.owners.spread(fits)
        return wanted

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Whether a row that is complete is wanted."""
        return all(one.holds(row) for one in self.conditions)


def read_having(
    texts: Iterable[str] | None, level: Level, names: Iterable[str], flag: str = "--having"
) -> Having | None:
    """``clip=="high" && share>0.01`` for rows of a level that have these columns.

    Raises:
        UsageError: for anything else, or a column that there is not.
    """
    names, conditions = [*names], []
    for one in read_conditions(texts, flag):
        known = [name for name in names if name in (one.path[0], spelled(one.path))]
        if not known:
            near = nearest(spelled(one.path), names)
            hint = f"; did you mean {near}?" if near else ""
            raise UsageError(
                f"{flag} at --level {level}: there is no column {spelled(one.path)!r}{hint} "
                f"(there are {', '.join(names)})"
            )
        if known[-1] == "clip" and one.wanted not in (*SIDES.tolist(), None):
            raise UsageError(
                f"{flag}: clip is high, low or null (a token that is not clipped), "
                f"got {one.wanted!r}"
            )
        whole = known[-1] == spelled(one.path)
        conditions.append(one._replace(path=(known[-1],) if whole else one.path))
    return Having(level, tuple(conditions)) if conditions else None
