"""What the tokens of each string add up to: exact sums in columns with a row a string."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.commands.trend.sums import exact_sum
from grpo_cli.engine.rows.rows import columns
from grpo_cli.engine.rows.source import Source
from grpo_cli.errors import InputError

_MEANS = ("ratio", "log_ratio", "advantage", "mismatch")
_WAITING = 64
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

_BITS = 20
"""Bits of a digit: those of 2³³ tokens add up in a float without rounding."""
_ODD = -(10**6)
"""In the place of a power: values that are not finite."""


@dataclass
class StringSums:
    """The sums of tokens by their string.

    Attributes:
        texts: [S] the strings, or ids; None for tokens that have neither.
        counts: [S] by name: tokens, low and high (those that were clipped), mismatch.
        digits: [S] by name and power of 2**_BITS, whole numbers: times the power they add up to
            the sums, exactly.
    """

    texts: list[Any] = field(default_factory=list)
    counts: dict[str, F64] = field(default_factory=dict)
    digits: dict[tuple[str, int], F64] = field(default_factory=dict)

    @classmethod
    def of(cls, source: Source) -> list[StringSums]:
        """Those of some records, in a list, as output is.

        Raises:
            InputError: for records whose tokens have neither strings nor ids.
        """
        summed = ("contribution", "gradient", *_MEANS)
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
        counts = {name: _sums(one, len(known)) for name, one in counted.items()}
        digits: dict[tuple[str, int], F64] = {}
        for name, values in numbers.items():
            for power, whole in () if values is None else _digits(values):
                digits[name, power] = _sums(codes, len(known), whole)
                if name not in _MEANS:  # the digits of a size are the sizes of the digits
                    digits[f"|{name}|", power] = _sums(codes, len(known), np.abs(whole))
        return [cls(known, counts, digits)]

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
                found.counts.setdefault(name, np.zeros(len(known)))[at] += counts
            for power, digits in table.digits.items():
                found.digits.setdefault(power, np.zeros(len(known)))[at] += digits
        return found

    def sums(self, name: str) -> list[list[float]]:
        """[S] numbers that add up to each sum exactly."""
        powers = [
            values if power == _ODD else np.ldexp(values, power * _BITS)
            for (of, power), values in self.digits.items()
            if of == name
        ]
        return np.array([*powers, np.zeros(len(self.texts))]).T.tolist()

    def rows(self) -> list[dict[str, Any]]:
        """A row for each string."""
        if not self.texts:
            return []
        counts = self.counts
        found: dict[str, Any] = {"token": self.texts}
        found["tokens"] = counts["tokens"].astype(np.int64).tolist()
        for name, share in (("contribution", "contribution_share"), ("gradient", "share")):
            sizes = self.sums(f"|{name}|")
            whole = exact_sum([*chain.from_iterable(sizes)])
            found[name] = [*map(exact_sum, self.sums(name))]
            found[share] = _over([*map(exact_sum, sizes)], [whole] * len(sizes))
        for name in _MEANS:
            counted = counts["mismatch" if name == "mismatch" else "tokens"]
            found[f"{name}_mean"] = _over([*map(exact_sum, self.sums(name))], counted.tolist())
        clipped = {"": counts["low"] + counts["high"], "_low": counts["low"]}
        for side, many in (clipped | {"_high": counts["high"]}).items():
            found[f"clip_fraction{side}"] = _over(many.tolist(), counts["tokens"].tolist())
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


def _digits(values: F64) -> Iterator[tuple[int, F64]]:
    """Powers of 2**_BITS, and [n] the digit of each value there: whole, and with its sign."""
    finite = np.isfinite(values)
    if not finite.all():
        yield _ODD, np.where(finite, 0.0, values)
        values = np.where(finite, values, 0.0)
    power = -(-int(np.frexp(np.abs(values).max(initial=0.0))[1]) // _BITS)
    while values.any():
        power -= 1
        digits = np.trunc(np.ldexp(values, -power * _BITS))
        values = values - np.ldexp(digits, power * _BITS)
        yield power, digits


def _sums(codes: I64, count: int, values: F64 | None = None) -> F64:
    """[S] the sum of each string's values; without values, how many there are."""
    return np.bincount(codes, values, count).astype(np.float64)


def _codes(texts: Sequence[Any]) -> tuple[I64, list[Any]]:
    """[n] the number of each text among those that differ, and these."""
    numbers: defaultdict[Any, int] = defaultdict(count().__next__)
    return np.array([*map(numbers.__getitem__, texts)], dtype=np.int64), [*numbers]


def _over(sums: Sequence[float], counts: Sequence[float]) -> list[float | None]:
    """Each sum over its count; None of nothing."""
    return [one / count if count else None for one, count in zip(sums, counts, strict=True)]
