"""The tokens of a whole batch: one evaluation, and the first rows of each chunk."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from grpo_cli.commands.answer import Answer
from grpo_cli.commands.eval.run import Run
from grpo_cli.commands.frames import Array, Frames, columns_of
from grpo_cli.commands.options import complete
from grpo_cli.commands.show.picture import COLORS, decoder, flowing, ranked_by
from grpo_cli.commands.show.strings import RANKS, ROW, StringSums, StringTables
from grpo_cli.engine import Evaluation, Reader
from grpo_cli.engine.rows.fields import FIELDS, SHARES, SIDES, STEP
from grpo_cli.engine.rows.rows import columns
from grpo_cli.engine.rows.source import Source
from grpo_cli.errors import UsageError
from grpo_cli.records.choose.grouping import batch_fields
from grpo_cli.records.choose.where import spelled
from grpo_cli.terminal.numbers import counted, percent
from grpo_cli.variants.plan import Plan


@dataclass(frozen=True)
class Shown(Frames, Answer):
    """The tokens, or token strings, that carry a batch, the largest first.

    Attributes:
        variant, signature: the objective.
        of: "token" or "string".
        by: the number that ranks the rows, by its size.
        count: how many tokens or token strings there are, of those that ``having`` keeps.
        carried: the part of Σ |contribution| of the batch (of Σ |gradient|, unless ranked by
            contribution) that the rows have; None if there are several batches.
        total: the batch's numbers by name.
        rows: the tokens or the token strings.
        notices: notes on the input and the numbers.
        having: the tests of ``--having``, which every row passes.
    """

    variant: str
    signature: str
    of: Literal["token", "string"]
    by: str
    count: int
    carried: float | None
    total: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    notices: Sequence[str] = ()
    having: Sequence[str] = ()

    of_views = ("heading",)

    @property
    def headline(self) -> str:
        """What is listed, of how many, and how much of the batch they carry."""
        return f"{self.variant}: {self.heading}"

    @property
    def heading(self) -> str:
        """What is listed, of how many, and how much of the batch they carry."""
        rows, noun = len(self.rows), "token string" if self.of == "string" else "token"
        all_of_them = counted(self.count, noun)
        if self.having:
            all_of_them += f" where {' and '.join(self.having)}"
        if not rows:
            return f"no {noun} to show ({all_of_them})"
        if self.of == "token" and not self.rows[0][COLUMN.get(self.by, self.by)]:
            other = "another --by" if self.by == "contribution" else "--by contribution"
            return f"{all_of_them}, each with {self.by} 0 ({other} ranks them)"
        cut = f"{rows:,} of " if rows < self.count else ""
        line = f"{cut}{all_of_them}, largest {ranked_by(self.by)} first"
        if self.carried is None or (rows == self.count and not self.having):
            return line
        of = "contribution" if self.by == "contribution" else "gradient"
        return f"{line}; together {percent(self.carried)} of Σ|{of}|"

    def table(self) -> list[Mapping[str, Any]]:
        """The tokens or token strings, in the columns that a terminal shows of them."""
        if self.of == "string":
            return [*self.rows]
        leading = takewhile("id".__ne__, self.rows[0] if self.rows else ())
        names = (*leading, *AT_PROMPT)
        return [{name: row.get(name) for name in names} for row in self.rows]

    def columns(self) -> dict[str, Array]:
        """The rows with every column, as arrays by name; a number that is unknown is NaN."""
        return columns_of(self.rows)


AT_PROMPT = (
    *("id", "response", "position", "token", "ratio", "advantage", "clip"),
    *("contribution", "contribution_share", "gradient"),
)
"""Columns of tokens that a prompt shows, and that those of Python begin with."""

Row = dict[str, Any]

RANK = "gradient"
"""What ranks tokens unless ``--by`` says it: what they change of the policy. A clipped token may
contribute most to J, and changes nothing."""


def rank_of(by: str | None, having: Sequence[str]) -> str:
    """What ranks tokens; the contribution where clipped ones are asked for, without gradient.

    Raises:
        UsageError: for a quantity that does not exist.
    """
    if by is not None:
        name = str(by).replace("-", "_")
        return complete.known("--by", _OTHER_NAMES.get(name, name), COLORS)
    clipped = any("clip" in re.findall(r"\w+", one) for one in having)
    return "contribution" if clipped else RANK


_OTHER_NAMES = {"log_ratio": "difference", "log_prob_difference": "difference"}


COLUMN = {"ratio": "log_ratio"}
"""Quantity → the column that ranks by it, where it has another name."""

_NAMES = tuple(name for name in FIELDS["token"] if name not in (STEP.name, "variant", "signature"))
_RANK = "rank"
"""Under this key, while rows are collected: the size that ranks a row."""


@dataclass(frozen=True)
class FirstTokens:
    """Makes the rows of the tokens of some records that stand out most. It travels.

    Attributes:
        by: the column that ranks them, by its size.
        count: how many at most; 0 for all.
        around: how many tokens before and after each are shown as text.
        fields: columns in addition to the usual ones.
    """

    by: str
    count: int
    around: int = 8
    fields: tuple[str, ...] = ()

    def __call__(self, source: Source) -> list[Row]:
        """The rows, in the order of the tokens."""
        values = columns(source, "token", [self.by]).get(self.by)
        if values is None or values.values is None or not len(values.values):
            return []
        sizes = np.nan_to_num(np.abs(values.values), nan=0.0, posinf=np.inf)
        kept = source.mask
        places = np.arange(len(sizes)) if kept is None else np.flatnonzero(kept)
        chosen = np.sort(places[first(sizes, self.count)])
        mask = np.zeros(source.batch.responses.total, dtype=np.bool_)
        mask[chosen] = True
        found = columns(source.only(lambda _: mask), "token", (*source.by, *self.fields, *_NAMES))
        listed = [
            [None] * len(chosen)
            if column.values is None
            else SIDES[column.values].tolist()
            if name == "clip"
            else [one.item() if isinstance(one, np.generic) else one for one in column.spread()]
            for name, column in found.items()
        ]
        rows = [dict(zip(found, row, strict=True)) for row in zip(*listed, strict=True)]
        ranks = np.abs(found[self.by].values).tolist()
        for row, rank, around in zip(rows, ranks, self._texts(source, chosen), strict=True):
            row |= around
            row[_RANK] = rank
        return rows

    def _texts(self, source: Source, chosen: NDArray[np.int64]) -> Iterable[Row]:
        """The text before and after each of these tokens; ``[…]`` replaces masked tokens."""
        batch = source.breakdown.batch
        decoders: dict[int, Any] = {}
        for token in chosen.tolist():
            record, response, position = batch.place(token)
            words: Any = source.records[record].tokens
            words = None if words is None else words[response]
            if words is None or position >= len(words):
                yield {"before": None, "after": None}
                continue
            at = int(batch.responses.index[token])
            if at not in decoders:
                decoders[at] = decoder(words)
            start, length = batch.responses.starts[at], batch.responses.lengths[at]
            own = source.positions[start : start + length].tolist()
            begin = max(position - self.around, own[0])
            places = range(begin, min(position + self.around, own[-1]) + 1)
            unmasked = {*places} & {*own}
            texts = [decoders[at](words[one]) if one in unmasked else MASKED for one in places]
            cut = position - begin
            yield {"before": _joined(texts[:cut]), "after": _joined(texts[cut + 1 :])}


MASKED = "[…]"
"""Replaces one or more masked tokens in a text."""


def _joined(texts: Sequence[str]) -> str:
    return re.sub(r"(\[…\])+", MASKED, "".join(texts))


def first(sizes: NDArray[Any], count: int) -> NDArray[np.int64]:
    """The places of the greatest sizes, all for 0, the first of equal ones first."""
    if 0 < count < len(sizes):
        least = np.partition(sizes, len(sizes) - count)[len(sizes) - count]
        places = np.flatnonzero(sizes >= least)
        return places[np.argsort(-sizes[places], kind="stable")[:count]]
    return np.argsort(-sizes, kind="stable")[: count or None]


class Ranked:
    """The rows of a batch that rank first, while its records come in order."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._rows: list[Row] = []

    def add(self, rows: Sequence[Row]) -> None:
        """Adds rows of tokens that come after all those before."""
        self._rows += rows
        if self._count and len(self._rows) > 4 * self._count + 1000:
            self._cut()

    def _cut(self) -> None:
        self._rows.sort(key=lambda row: -row[_RANK])  # equal ones stay in their order
        del self._rows[self._count or len(self._rows) :]

    def rows(self) -> list[Row]:
        """The rows, the first the greatest."""
        self._cut()
        return [{name: row[name] for name in row if name != _RANK} for row in self._rows]


def readable_token(row: Mapping[str, Any]) -> str:
    """The token of a row as text: its id or its position where it has no string."""
    if row.get("token") is not None:
        return flowing(decoder([row["token"]])(row["token"]))
    return str(row["position"] if row.get("token_id") is None else row["token_id"])


LACKING = {
    "kl": "this objective has no KL; --kl k3 adds one (needs log_probs_ref)",
    "mismatch": "the record has no log_probs_rollout (the engine's log-probs)",
    "log_prob": "the record has ratios instead of log-probs",
    "difference": "the record has ratios instead of log-probs of two policies",
}
"""Quantity → why there is none."""


def show_rows(
    reader: Reader,
    plan: Plan,
    *,
    by: str,
    top: int,
    strings: bool = False,
    having: Sequence[str] = (),
    make: Callable[..., Evaluation] = Evaluation,
) -> tuple[Shown, Evaluation]:
    """The tokens of all records that stand out most, or the token strings; and the evaluation.

    Args:
        reader: the files.
        plan: which objective.
        by: the quantity that ranks the rows.
        top: how many; 0 for all.
        strings: whether a row is a token string, with what its tokens add up to.
        having: what rows must hold.
        make: makes the evaluation.

    Raises:
        UsageError: for a column that does not exist, or a quantity that no record has.
    """
    if strings and by not in RANKS:
        raise UsageError(f"--by {by}: token strings are ranked by {', '.join(RANKS)}")
    fields = tuple(map(spelled, batch_fields(plan.batch)))
    wanted = complete.having(
        having, "token", ROW if strings else dict.fromkeys((*fields, *FIELDS["token"]))
    )
    rank = COLUMN.get(by, by)
    if by == "share" and plan.batch == "input":
        rank = "gradient"  # which ranks alike, and is known in one pass
    if strings:
        run = make(reader, plan, encode=StringSums.of, rows=True)
    else:
        shares = rank in SHARES or (wanted is not None and wanted.needs_shares)
        encode = FirstTokens(rank, top, fields=(STEP.name,))
        run = make(reader, plan, encode=encode, rows=True, shares=shares, having=wanted)
    found: Any = StringTables(by) if strings else Ranked(top)
    for pieces in run:
        found.add(pieces)
    rows = found.rows()
    if strings:
        rows = [row for row in rows if wanted is None or wanted.holds(row)]
        count = len(rows)
    else:
        for row in rows:
            if row["share"] != row["share"]:  # its batch is only known now
                whole = run.sums.batches.size(row)
                sizes = zip(SHARES, ("gradient", "contribution"), whole, strict=True)
                row |= {name: abs(row[of]) / size if size else 0.0 for name, of, size in sizes}
        count = run.total["tokens"] if wanted is None else run.sums.shown
        if not rows and count:
            raise UsageError(f"--by {by}: {LACKING.get(by, 'no token has it')}")
    rows = rows[: top or None]
    if STEP.name not in fields and (plan.batch != "input" or not reader.pooled(plan.batch)):
        rows = [{name: row[name] for name in row if name != STEP.name} for row in rows]
    share = "contribution_share" if by == "contribution" else "share"
    carried = sum(row[share] for row in rows) if plan.batch == "input" else None
    total = {} if isinstance(run, Run) and run.empty else run.total
    of: Literal["string", "token"] = "string" if strings else "token"
    head = (plan.variant, run.signature, of, by, count, carried, total)
    return Shown(*head, rows, run.notices, list(having)), run
