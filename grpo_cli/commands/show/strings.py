"""What the tokens of each string add up to: exact sums in columns with a row a string."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any

import numpy as np

from grpo_cli.batch import I64
from grpo_cli.commands.trend.sums import Ragged, short_sums
from grpo_cli.engine.rows.rows import columns
from grpo_cli.engine.rows.source import Source, fraction
from grpo_cli.errors import InputError
from grpo_cli.objective.arithmetic.exact_sums import added

_SIZED = ("contribution", "gradient")
"""What the sizes are added up of as well."""
_MEANS = ("ratio", "log_ratio", "advantage", "mismatch")
_WAITING = 8
"""Tables that wait to be merged."""

ROW = (
    *("token", "tokens", "contribution", "contribution_share", "gradient", "share"),
    *("ratio_mean", "log_ratio_mean", "advantage_mean", "mismatch_mean"),
    *("clip_fraction", "clip_fraction_low", "clip_fraction_high"),
)
"""The columns of a row."""

RANKS = {
    "contribution": "contribution",
    "gradient": "gradient",
    "share": "share",
    "ratio": "log_ratio_mean",
    "advantage": "advantage_mean",
    "mismatch": "mismatch_mean",
}
"""Quantity → the column that ranks rows by it."""


@dataclass
class StringSums:
    """The sums of tokens by their string.

    Attributes:
        texts: [S] the strings, or ids; None for tokens that have neither.
        counts: [S] by name: tokens, low and high (those that were clipped), mismatch.
        sums: by name, numbers that add up to the sum of each string exactly.
    """

    texts: list[Any] = field(default_factory=list)
    counts: dict[str, I64] = field(default_factory=dict)
    sums: dict[str, Ragged] = field(default_factory=dict)

    @classmethod
    def of(cls, source: Source) -> list[StringSums]:
        """Those of some records, in a list, as output is.

        Raises:
            InputError: for records whose tokens have neither strings nor ids.
        """
        summed = (*_SIZED, *_MEANS)
        found = columns(source, "token", ("token", "token_id", "clip", *summed))
        texts, clip = found["token"].values or found["token_id"].values, found["clip"].values
        if texts is None:
            if len(clip):
                raise InputError("the records have no token strings or ids (tokens, token_ids)")
            return []
        codes, known = _codes(texts)
        numbers = {name: found[name].values for name in summed}
        counted = {"tokens": codes, "low": codes[clip < 0], "high": codes[clip > 0]}
        counted["mismatch"] = codes[:0] if numbers["mismatch"] is None else codes
        counts = {name: np.bincount(one, minlength=len(known)) for name, one in counted.items()}
        numbers |= {f"|{name}|": np.abs(numbers[name]) for name in _SIZED}
        order, widths = np.argsort(codes, kind="stable"), np.bincount(codes)
        given = {name: one for name, one in numbers.items() if one is not None}
        sums = {name: Ragged(widths, one[order]) for name, one in given.items()}
        return [cls(known, counts, sums)]

    @classmethod
    def merged(cls, tables: Sequence[StringSums]) -> StringSums:
        """The sums of all records."""
        if len(tables) < 2:
            return tables[0] if tables else cls()
        codes, known = _codes([*chain.from_iterable(one.texts for one in tables)])
        places = np.split(codes, np.cumsum([len(one.texts) for one in tables])[:-1])
        found = cls(known)
        for table, at in zip(tables, places, strict=True):
            for name, counts in table.counts.items():
                found.counts.setdefault(name, np.zeros(len(known), np.int64))[at] += counts
        order = np.argsort(codes, kind="stable")
        firsts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        for name in dict.fromkeys(chain.from_iterable(one.sums for one in tables)):
            every = Ragged.stacked([one.sums.get(name) or one.nothing for one in tables])
            found.sums[name] = short_sums(every.taken(order).merged(firsts))
        return found

    @property
    def nothing(self) -> Ragged:
        """No number of any string."""
        return Ragged(np.zeros(len(self.texts), dtype=np.int64), np.zeros(0))

    def rows(self) -> list[dict[str, Any]]:
        """A row for each string."""
        if not self.texts:
            return []
        counts = self.counts
        found: dict[str, Any] = {"token": self.texts}
        found["tokens"] = counts["tokens"].tolist()
        for name, share in (("contribution", "contribution_share"), ("gradient", "share")):
            sizes = self.sums[f"|{name}|"]
            whole = added(sizes.values.tolist())
            found[name] = self.sums[name].sums().tolist()
            found[share] = fraction(sizes.sums().tolist(), [whole] * len(self.texts))
        for name in _MEANS:
            counted = counts["mismatch" if name == "mismatch" else "tokens"]
            means = self.sums.get(name) or self.nothing
            found[f"{name}_mean"] = fraction(means.sums().tolist(), counted.tolist())
        clipped = {"": counts["low"] + counts["high"], "_low": counts["low"]}
        for side, many in (clipped | {"_high": counts["high"]}).items():
            found[f"clip_fraction{side}"] = fraction(many.tolist(), counts["tokens"].tolist())
        lists = [found[name] for name in ROW]
        return [dict(zip(ROW, row, strict=True)) for row in zip(*lists, strict=True)]


class StringTables:
    """The sums of a batch, while its records come."""

    def __init__(self, by: str) -> None:
        self._column = RANKS[by]
        self._tables: list[StringSums] = []

    def add(self, tables: Sequence[StringSums]) -> None:
        """Adds those of some records."""
        self._tables += tables
        if len(self._tables) > _WAITING:
            self._tables = [StringSums.merged(self._tables)]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each string, those first whose number has the greatest size, then by text."""
        rows, by = StringSums.merged(self._tables).rows(), self._column
        return sorted(rows, key=lambda row: (-abs(row[by] or 0.0), str(row["token"])))


def _codes(texts: Sequence[Any]) -> tuple[I64, list[Any]]:
    """[n] the number of each text among those that differ, and these."""
    numbers: defaultdict[Any, int] = defaultdict(count().__next__)
    return np.array([*map(numbers.__getitem__, texts)], dtype=np.int64), [*numbers]
