"""What the tokens of each string add up to: exact sums in columns with a row a string."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.commands.trend.sums import Ragged, exact_sum, short_sums
from grpo_cli.engine.rows.rows import columns
from grpo_cli.engine.rows.source import Source
from grpo_cli.errors import InputError

_SUMMED = ("contribution", "gradient", "ratio", "log_ratio", "advantage", "mismatch")
_SIZES = {"contribution_size": "contribution", "gradient_size": "gradient"}
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


@dataclass
class StringSums:
    """The sums of tokens by their string.

    Attributes:
        texts: [S] the strings, or ids; None for tokens that have neither.
        counts: [S] by name: tokens, low and high (those that were clipped), mismatches.
        sums: by name, numbers of each string that add up to its sum exactly.
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
        found = columns(source, "token", ("token", "token_id", "clip", *_SUMMED))
        texts = found["token"].values or found["token_id"].values
        if texts is None:
            if len(found["clip"].values):
                raise InputError("the records have no token strings or ids (tokens, token_ids)")
            return []
        codes, known = _codes(texts)
        numbers = {name: found[name].values for name in _SUMMED}
        numbers |= {name: np.abs(numbers[of]) for name, of in _SIZES.items()}
        clip, mismatch = found["clip"].values, numbers["mismatch"]
        counted = {"tokens": codes, "low": codes[clip < 0], "high": codes[clip > 0]}
        counted["mismatches"] = codes[:0] if mismatch is None else codes
        counts = {name: np.bincount(one, minlength=len(known)) for name, one in counted.items()}
        order = np.argsort(codes, kind="stable")
        nothing = Ragged(np.zeros(len(known), dtype=np.int64), np.zeros(0))
        sums = {
            name: nothing if values is None else Ragged(counts["tokens"], values[order])
            for name, values in numbers.items()
        }
        return [cls(known, counts, {name: short_sums(one) for name, one in sums.items()})]

    @classmethod
    def merged(cls, tables: Sequence[StringSums]) -> StringSums:
        """The sums of all records."""
        if len(tables) < 2:
            return tables[0] if tables else cls()
        codes, known = _codes([*chain.from_iterable(one.texts for one in tables)])
        order = np.argsort(codes, kind="stable")
        firsts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        counts, sums = {}, {}
        for name in tables[0].counts:
            stacked = np.concatenate([one.counts[name] for one in tables])
            counts[name] = np.add.reduceat(stacked[order], firsts)
        for name in tables[0].sums:
            whole = Ragged.stacked([one.sums[name] for one in tables])
            sums[name] = short_sums(whole.taken(order).merged(firsts))
        return cls(known, counts, sums)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each string."""
        if not self.texts:
            return []
        counts, sums = self.counts, {name: one.sums() for name, one in self.sums.items()}
        found: dict[str, Any] = {"token": self.texts, "tokens": counts["tokens"].tolist()}
        for name, share in (("contribution", "contribution_share"), ("gradient", "share")):
            whole = exact_sum(self.sums[f"{name}_size"].values.tolist())
            found[name] = sums[name].tolist()
            found[share] = _over(sums[f"{name}_size"], np.full(len(self.texts), whole))
        for name in _SUMMED[2:]:
            counted = counts["mismatches" if name == "mismatch" else "tokens"]
            found[f"{name}_mean"] = _over(sums[name], counted)
        clipped = {"clip_fraction": counts["low"] + counts["high"]}
        clipped |= {f"clip_fraction_{side}": counts[side] for side in ("low", "high")}
        found |= {name: _over(many, counts["tokens"]) for name, many in clipped.items()}
        lists = [found[name] for name in ROW]
        return [dict(zip(ROW, row, strict=True)) for row in zip(*lists, strict=True)]


class StringTables:
    """The sums of a batch, while its records come."""

    def __init__(self) -> None:
        self._tables: list[StringSums] = []

    def add(self, tables: Iterable[StringSums]) -> None:
        """Adds those of some records."""
        self._tables += tables
        if len(self._tables) > _WAITING:
            self._tables = [StringSums.merged(self._tables)]

    def rows(self, by: str) -> list[dict[str, Any]]:
        """A row for each string, those first whose number has the greatest size, then by text."""
        rows, column = StringSums.merged(self._tables).rows(), RANKS[by]
        return sorted(rows, key=lambda row: (-abs(row[column] or 0.0), str(row["token"])))


def _codes(texts: Sequence[Any]) -> tuple[I64, list[Any]]:
    """[n] the number of each text among those that differ, and these."""
    numbers: dict[Any, int] = {}
    codes = np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64)
    return codes, [*numbers]


def _over(sums: F64 | I64, counts: F64 | I64) -> list[float | None]:
    """Each sum over its count; None of nothing."""
    pairs: Mapping[Any, Any] | zip[Any] = zip(sums.tolist(), counts.tolist(), strict=True)
    return [one / count if count else None for one, count in pairs]
