"""The result of an evaluation: totals, every number below them by name, rows as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from grpo_cli.api.arguments import speaking_of_arguments
from grpo_cli.api.data import Texts, listed
from grpo_cli.commands.answer import (
    cut,
    html_page,
    html_rows,
    html_table,
    notice_line,
    text_of_numbers,
    text_of_rows,
    what_was_counted,
)
from grpo_cli.commands.frames import (
    Array,
    Columns,
    array,
    arrow_table,
    pandas_frame,
    polars_frame,
    with_values,
)
from grpo_cli.commands.options import complete
from grpo_cli.engine.rows.fields import COLUMNS, FIELDS, KINDS, SIDES, STEP, Level
from grpo_cli.engine.rows.rows import columns as columns_of
from grpo_cli.engine.rows.rows import read_having
from grpo_cli.engine.rows.source import Source
from grpo_cli.engine.totals import is_mean
from grpo_cli.errors import UsageError, did_you_mean
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.terminal.numbers import counted, shown

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]
    import polars  # type: ignore[import-not-found]


_MAIN = (
    *("loss", "objective", "policy", "kl", "clip_fraction"),
    *("ratio_mean", "ratio_max", "gradient_norm"),
)
"""The totals that a prompt shows."""


class PerResponse(list[Array]):
    """A list of one array per response, which a prompt shows in short if it is long."""

    def __repr__(self) -> str:
        """All arrays, or how many there are, how long, and the first numbers."""
        lengths = [len(one) for one in self]
        if sum(lengths) <= _SHORT:
            return super().__repr__()
        first = ", ".join(map(_first_numbers, self[:_EDGE]))
        sizes = f"{counted(len(self), 'array')} of {min(lengths)} to {max(lengths)}"
        return f"[{first}{', …' * (len(self) > _EDGE)}] ({sizes}, {sum(lengths):,} values)"


_SHORT, _EDGE = 60, 3
"""Values up to which all are shown; of more the first of the first arrays."""


def _first_numbers(values: Array) -> str:
    first = (shown(one) if isinstance(one, float) else repr(one) for one in values[:_EDGE].tolist())
    return f"[{', '.join(first)}{', …' * (len(values) > _EDGE)}]"


class _ByResponse:
    """A column of the tokens, an array for each response; its attribute has the column's name."""

    def __init__(self, meaning: str) -> None:
        self.__doc__ = meaning

    def __set_name__(self, _: type, name: str) -> None:
        vars(self).setdefault("name", name)  # its alias comes second

    def __get__(self, result: Evaluated, _: type) -> PerResponse:
        return self if result is None else result._tokens(vars(self)["name"])


@dataclass(frozen=True, eq=False, repr=False)
class Evaluated:
    """The result for a batch.

    ``ratio``, ``kl`` and the others below are lists with one array per response, a number for each
    token that counts; ``columns`` has the same and more, all tokens in one array. The batch's KL,
    the only total of such a name, is ``total["kl"]``. Weight, gradient
    and contribution refer to the same batch as ``total``: contributions add up to its objective.
    With ``batch="record"``, or fields, they are of the record's own batch.

    Attributes:
        total: the batch's numbers by name, as ``grpo eval --level batch`` prints them.
        signature: one line that names every choice which changes the number.
        notices: what was assumed, for example if log_probs_old is missing.
        parts: the records with all their numbers; empty if only totals were asked for.
        batches: with ``batch="step"`` or other fields, the numbers of each batch behind those that
            name it; ``total`` is then their mean. With ``batch="record"`` it is empty:
            ``columns("record")`` has each record's.
        variant: the name of the variant.
    """

    total: Mapping[str, Any]
    signature: str
    notices: Sequence[str] = ()
    parts: Sequence[Source] = field(default=(), repr=False)
    batches: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    variant: str = ""

    @property
    def headline(self) -> str:
        """The variant, and what was evaluated."""
        batches = counted(len(self.batches), "batch", "batches") if self.batches else ""
        if not batches and is_mean(self.total):
            batches = "each record a batch"
        mean = f", {batches}; mean loss {self.total['loss']:.6g}" if batches else ""
        return f"{self.variant}: {what_was_counted(self.total)}{mean}"

    def __repr__(self) -> str:
        """The main numbers, those of each batch, the signature, and how many notices there are."""
        rows = self._batch_rows()
        numbers = {name: self.total[name] for name in _MAIN if self.total[name] is not None}
        table = text_of_rows(rows) if rows else text_of_numbers(numbers)
        lines = [f"Evaluated({self.headline})", table, f"signature  {cut(self.signature)}"]
        return "\n".join([*lines, *notice_line(self.notices)])

    def _batch_rows(self) -> list[dict[str, Any]]:
        """The main numbers of each batch, behind the fields that name it."""
        names = [name for name in self.batches[0] if name not in self.total] if self.batches else []
        return [{name: batch[name] for name in (*names, *_MAIN)} for batch in self.batches]

    def _named(self) -> list[tuple[str, Any]]:
        """The totals that are known, the main ones first, a norm with what it is the norm of."""
        norm = {"gradient_norm": "gradient_norm of the mean loss"} if is_mean(self.total) else {}
        first = [name for name in _MAIN if name in self.total]
        names = dict.fromkeys([*first, *self.total])
        return [(norm.get(n, n), self.total[n]) for n in names if self.total[n] is not None]

    def __getattr__(self, name: str) -> Any:
        """A number of ``total``, or where another is; only names that are no field come here."""
        if name.startswith("_") or "total" not in self.__dict__:  # while it is unpickled
            raise AttributeError(name)
        if name in self.total:
            return self.total[name]
        hint = did_you_mean(name, [one for one in dir(self) if not one.startswith("_")])
        raise AttributeError(f"Evaluated has no attribute {name!r}{hint}")

    def __dir__(self) -> list[str]:
        """The attributes, and the names of ``total``."""
        return sorted({*super().__dir__(), *self.total} - {"advantages", "contributions"})

    def __eq__(self, other: object) -> bool:
        """Whether the objective and all totals are equal."""
        return isinstance(other, Evaluated) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        """Of the objective."""
        return hash(self.signature)

    def to_dict(self) -> dict[str, Any]:
        """The JSON of ``grpo eval --level batch`` as dicts and lists."""
        found = {"variant": self.variant, "signature": self.signature, "total": dict(self.total)}
        return found | ({"batches": [*map(dict, self.batches)]} if self.batches else {})

    def _repr_html_(self) -> str:
        """The main numbers of each batch and the totals as tables, for notebooks."""
        rows = self._batch_rows()
        tables = [html_rows(rows)] if rows else []
        mean = rows or is_mean(self.total)
        tables.append(html_table(("", "mean of the batches" if mean else "batch"), self._named()))
        return html_page(self.headline, tables, [self.signature, *self.notices])

    @property
    def objective(self) -> float:
        """J, which is maximised."""
        return float(self.total["objective"])

    @property
    def loss(self) -> float:
        """−J."""
        return float(self.total["loss"])

    @property
    def breakdown(self) -> Breakdown:
        """Every number as flat arrays, of records that were evaluated together.

        Raises:
            UsageError: where they were not, since their layouts, or settings that cannot be arrays,
                differ.
        """
        if len(self.parts) != 1:
            raise UsageError(
                f"the records were evaluated in {len(self.parts)} parts: columns() has all "
                "numbers, parts has each breakdown"
            )
        return self.parts[0].breakdown

    def columns(
        self, level: Level = "token", *, fields: Texts = (), having: Texts = ()
    ) -> dict[str, Array]:
        """The rows of a level as arrays by name.

        They have the columns and values that ``grpo eval --level LEVEL`` prints; ``step`` only
        where a record says it.

        >>> from grpo_cli import evaluate
        >>> result = evaluate("samples/dr_grpo.json", "dr")
        >>> result.columns("response", fields="response,reward,clip_fraction")
        {'response': array([0, 1]), 'reward': array([1., 0.]), 'clip_fraction': array([1., 0.])}

        Args:
            level: what one row is: "batch" (one of ``batches``, or else all records), "record",
                "trajectory", "response", "turn" or "token". Default: "token".
            fields: only these columns, in this order, as ``"id,contribution"`` or a list.
                Default: the usual ones, without ``variant`` and ``signature``.
            having: only rows that fit, as ``"clip==high && share>0.01"``. Default: all.

        Returns:
            Name → one value a row. Unknown or undefined numbers are NaN, a missing text is None.
            Each of several reward functions is a column, ``reward.NAME`` or ``reward.0``.

        Raises:
            UsageError: for a level or column that does not exist, or where only totals were kept.
        """
        complete.known("level", str(level), get_args(Level))
        rows, parts = self.batches or [self.total], self.parts
        if level != "batch":
            self._with_rows()
        known = (
            (*rows[0],) if level == "batch" else (*dict.fromkeys((*parts[0].by, *FIELDS[level])),)
        )
        texts = [one.strip() for text in listed(fields) for one in text.split(",")]
        with speaking_of_arguments():
            where = f"fields at level {level}"
            names = [complete.known_column(where, one, level, known) for one in texts]
            wanted = read_having(listed(having), level, known, "having")
        if level == "batch":
            kept = [row for row in rows if wanted is None or wanted.holds(row)]
            names = names or [name for name in known if name not in _ASKED_FOR]
            return {name: array([row[name] for row in kept]) for name in names}
        if wanted is not None:
            parts = [part.only(wanted.mask) for part in parts]
        return columns(parts, level, names)

    def to_arrow(self, level: Level = "token", *, fields: Texts = (), having: Texts = ()) -> Any:
        """The rows of a level as an Arrow table, null for NaN.

        Args:
            level, fields, having: as for ``columns``; without ``fields``, the columns that have a
                value in some row.

        Returns:
            A ``pyarrow.Table``.

        Raises:
            UsageError: for a level or column that does not exist.
            PackageError: where pyarrow is not installed.
        """
        return arrow_table(self._in_frame(level, fields, having))

    def to_pandas(
        self, level: Level = "token", *, fields: Texts = (), having: Texts = ()
    ) -> pandas.DataFrame:
        """As ``to_arrow``, a data frame of pandas, NaN for null.

        Take its columns by ``frame["clip"]``: ``frame.clip`` is a method of pandas. It is NaN where
        a token is not clipped: ``frame[frame["clip"].notna()]``, or ``having="clip!=none"``.
        """
        return pandas_frame(self._in_frame(level, fields, having))

    def to_polars(
        self, level: Level = "token", *, fields: Texts = (), having: Texts = ()
    ) -> polars.DataFrame:
        """As ``to_arrow``, a data frame of polars."""
        return polars_frame(self._in_frame(level, fields, having))

    def _in_frame(self, level: Level, fields: Texts, having: Texts) -> Columns:
        """The columns that are asked for, or else those that have a value."""
        found = self.columns(level, fields=fields, having=having)
        return found if fields else with_values(found)

    ratio = _ByResponse("ρ: π_θ over π_old, at the level of the objective.")
    log_ratio = _ByResponse("Log ρ.")
    clip = _ByResponse('The side on which the clip bound the token: "low", "high" or None.')
    kl = _ByResponse("The KL estimate; NaN where there is nothing to estimate it from.")
    surrogate = _ByResponse("The policy term.")
    correction = _ByResponse("The weight of the rollout correction; 1 where there is none.")
    weight = _ByResponse("The aggregation's weight of each token.")
    advantage = _ByResponse("The advantage of each token.")
    gradient = _ByResponse("∂J/∂(log_probs_new), J being the objective of the token's batch.")
    contribution = _ByResponse("Each token's part of its batch's J; they add up to it.")
    position = _ByResponse(
        "Each token's index in its response as it was written, masked tokens counted."
    )
    advantages, contributions = advantage, contribution

    def _tokens(self, name: str) -> PerResponse:
        """A column of the tokens by response; 1 where nothing corrects a token's term."""
        self._with_rows()
        tokens = columns(self.parts, "token", [name])[name]
        if name == "correction":
            without = [part.breakdown.correction is None for part in self.parts]
            counts = [len(part.breakdown.ratio) for part in self.parts]
            tokens = np.where(np.repeat(without, counts), 1.0, tokens)
        return self.per_response(tokens)

    def per_response(self, tokens: Array) -> PerResponse:
        """Cuts a flat token array into responses."""
        lengths = [part.breakdown.batch.responses.lengths for part in self.parts]
        return PerResponse(np.split(tokens, np.cumsum(np.concatenate(lengths))[:-1]))

    def _with_rows(self) -> None:
        if not self.parts:
            raise UsageError("the evaluation kept only totals (totals_only), so there are no rows")


_ASKED_FOR = ("variant", "signature")
"""Columns that say the same in every row, or nearly: only where ``fields`` names them."""


def columns(parts: Sequence[Source], level: Level, only: Sequence[str] = ()) -> dict[str, Array]:
    """Name → one value a row, of the fields that rows of this level have, or of ``only`` some.

    Unknown or undefined numbers are NaN, a missing text is None. With several reward functions
    there is a column for each, ``reward.NAME`` or ``reward.0``.
    """
    usual = (*parts[0].by, *(FIELDS if level == "record" else COLUMNS)[level])
    says_step = any(one.step is not None for part in parts for one in part.records)
    without = _ASKED_FOR if says_step else (*_ASKED_FOR, STEP.name)
    names = only or [one for one in dict.fromkeys(usual) if one not in without]
    tables = [_table(part, level, names) for part in parts]
    found: dict[str, Array] = {}
    for name in dict.fromkeys(name for table in tables for name in table):
        rows = [len(next(iter(table.values()))) for table in tables]
        pieces = [
            table.get(name, np.full(n, np.nan)) for n, table in zip(rows, tables, strict=True)
        ]
        if len(pieces) > 1 and {piece.dtype.kind for piece in pieces} - {"i", "f"}:
            flat = [one for piece in pieces for one in piece.tolist()]
            found[name] = array([None if one != one else one for one in flat])
        else:
            found[name] = np.concatenate(pieces)
    if not only:
        return found
    return {
        key: found[key]
        for name in only
        for key in found
        if key == name or key.startswith(f"{name}.")  # of several reward functions
    }


def _table(source: Source, level: Level, names: Sequence[str]) -> dict[str, Array]:
    table: dict[str, Array] = {}
    for name, column in columns_of(source, level, names).items():
        values = column.values
        first = next(iter(values), None) if name == "reward" else None
        if isinstance(first, dict | list):  # of several functions
            keys = list(first) if isinstance(first, dict) else range(len(first))
            table |= {f"{name}.{key}": array([row[key] for row in values]) for key in keys}
        elif values is not None:
            each = SIDES[values] if name == "clip" else array(values)
            owners = column.owners
            table[name] = each if owners is None else np.repeat(each, owners.lengths)
        else:
            rows = source.count(level) if source.mask is None else np.count_nonzero(source.mask)
            table[name] = np.full(rows, None if KINDS[name] == "text" else np.nan)
    return table
