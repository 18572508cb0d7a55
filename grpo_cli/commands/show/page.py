"""The page of ``grpo show --html``: the records of the input, each as if it were alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from grpo_cli.commands.options.everywhere import command_line
from grpo_cli.commands.page.page import (
    blocks,
    finite,
    html,
    still_record,
    still_totals,
    text_fields,
)
from grpo_cli.commands.show.batch import COLUMN, readable_token, show_rows
from grpo_cli.commands.show.picture import Picture
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.rows.rows import rows
from grpo_cli.engine.rows.source import Source
from grpo_cli.errors import GrpoError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.records import Raw, Record
from grpo_cli.records.unread import STEP_FIELDS
from grpo_cli.terminal.numbers import counted, markup, shown
from grpo_cli.variants.plan import Plan

_MOST = 200_000
"""Tokens of a page; the first record is always on it."""


class OnPage(NamedTuple):
    """A record of a page: its heading, where it was read, its objective, and its numbers.

    ``numbers`` has those of its row in the table of records, ``block`` those of its tokens.
    """

    name: str
    title: str
    place: str
    signature: str
    numbers: Sequence[Any]
    block: str

    @classmethod
    def of(cls, raw: Raw, record: Record, breakdown: Breakdown) -> OnPage:
        """The record as it evaluates alone."""
        place = place_of(record)
        signature = breakdown.objective.signature
        whole = (text_fields(raw.value), 0, range(len(record.widths)))
        (block,) = blocks([record], breakdown, [whole])
        (row,) = rows(Source([record], breakdown), "response")
        rewards = [one["reward"] for one in row["responses"]]
        is_known = bool(rewards) and all(isinstance(one, int | float) for one in rewards)
        reward = sum(rewards) / len(rewards) if is_known else None
        numbers = finite([reward, *(row[name] for name in _OF_RECORD)])
        title = _title(raw, record, breakdown)
        return cls(shown(record.name), title, place, signature, numbers, block)


def place_of(record: Record) -> str:
    """The file of a record and its line."""
    return record.source + ("" if record.line is None else f":{record.line}")


def _title(raw: Raw, record: Record, breakdown: Breakdown) -> str:
    """The record's name and step, its loss as which variant, and how much of it is clipped."""
    known = raw.value if isinstance(raw.value, dict) else {}
    steps = (f" of step {shown(known[name])}" for name in STEP_FIELDS if name in known)
    loss = shown(-float(breakdown.record_objective[0]) + 0.0)
    clipped = np.count_nonzero(breakdown.clip)
    tokens = counted(len(breakdown.clip), "token")
    variant = breakdown.objective.signature.partition("|")[0]
    name = f"record {shown(record.name)}{next(steps, '')}"
    return f"{name}: {variant} loss {loss}, {clipped:,} of {tokens} clipped"


def with_others(
    first: OnPage, tokens: int, records: Iterable[tuple[Raw, Record]], plan: Plan
) -> tuple[list[OnPage], str]:
    """The records of a page, as many as there is room for, and a sentence on those left out.

    Args:
        first: the first record.
        tokens: how many tokens that has.
        records: the records after it.
        plan: the objective.
    """
    drawn = [first]
    evaluator = Evaluator(plan)
    try:
        for raw, record in records:
            tokens += sum(record.widths)
            if tokens > _MOST:
                there = counted(len(drawn), "record")
                return drawn, (
                    f"the page has the first {there} (at most {_MOST:,} tokens) and the records of "
                    f"the listed tokens; --record {shown(record.name)} draws the next record"
                )
            drawn.append(OnPage.of(raw, record, Chunk.of([record]).run(evaluator.evaluate)))
    except GrpoError as error:
        return drawn, f"the page ends before a record that cannot be read: {error}"
    return drawn, ""


def ranked_tokens(
    records: list[OnPage], reader: Reader, plan: Plan, by: str, top: int
) -> dict[str, Any] | None:
    """The tokens of all records that stand out most, as the page lists them above its records.

    Their records are added to those of the page. None for one record, and where a record cannot be
    evaluated, which the page says.
    """
    if len(records) < 2:
        return None
    try:
        answer, _ = show_rows(reader, plan, by=by, top=top)
    except GrpoError:
        return None
    owners = [
        (row["source"] + ("" if row["line"] is None else f":{row['line']}"), shown(row["id"]))
        for row in answer.rows
    ]
    if lacking := {*owners}.difference((one.place, one.name) for one in records):
        records += _records_of(lacking, reader, plan)
    places = {(one.place, one.name): at for at, one in enumerate(records)}
    share = "contribution_share" if by == "contribution" else "share"
    names = [*dict.fromkeys((*_OF_TOKEN, COLUMN.get(by, by), share))]
    total, listed = answer.total, []
    for row, owner in zip(answer.rows, owners, strict=True):
        place = (row["response"], row["position"], readable_token(row), places.get(owner))
        listed.append([owner[1], *place, *(row[name] for name in names)])
    loss = f"{answer.variant} loss {shown(total['loss'])}"
    settings: dict[str, Any] = finite(
        {
            "title": f"{counted(total['records'], 'record')} as one batch: {loss}",
            "heading": answer.heading,
            "total": {name: total[name] for name in _OF_BATCH if total[name] is not None},
            "names": [name.replace("_", " ") for name in names],
            "rows": listed,
        }
    )
    return settings | {"notes": [*answer.notices]}


def _records_of(owners: Set[tuple[str, str]], reader: Reader, plan: Plan) -> Iterator[OnPage]:
    """The records of these places and names, each evaluated alone."""
    evaluator = Evaluator(plan)
    with suppress(GrpoError):
        for raw, record in reader.records():
            if (place_of(record), shown(record.name)) in owners:
                yield OnPage.of(raw, record, Chunk.of([record]).run(evaluator.evaluate))


def _still_batch(first: OnPage, ranked: dict[str, Any] | None) -> Iterator[str]:
    """The numbers of a batch, and whose the numbers below are."""
    if ranked is not None:
        yield still_totals(ranked["total"])
        yield f"<h2>{markup(first.title)} (evaluated alone)</h2>\n"


_OF_RECORD = ("loss", "response_count", "tokens", "clip_fraction", "gradient_norm")
_OF_BATCH = (
    *("objective", "loss", "policy", "kl", "gradient_norm", "clip_fraction", "ratio_mean"),
    *("records", "groups", "responses", "tokens"),
)
_OF_TOKEN = ("ratio", "advantage", "clip")
"""The columns of every table of tokens."""


def page_of(
    records: Sequence[OnPage],
    left_out: str,
    picture: Picture,
    *,
    ranked: dict[str, Any] | None,
    color_by: str | None,
    only: Sequence[int] | None,
    top: int,
) -> Iterator[str]:
    """The page in parts.

    Args:
        records: what is on it, the first one open.
        left_out: a sentence on the records that are not.
        picture: the first record.
        ranked: the tokens of all records that stand out.
        color_by: what colours the tokens; None for the usual.
        only: the responses that are drawn; None for all.
        top: how many of the most extreme tokens are listed; 0 for all.
    """
    first = records[0]
    named: list[dict[str, Any]] = [one._replace(block="")._asdict() for one in records]
    settings: dict[str, Any] = {"color_by": color_by, "only": only, "top": top or _MOST}
    settings |= {"left_out": left_out, "ranked": ranked}
    return html(
        title=first.title if ranked is None else ranked["title"],
        place=first.place,
        command=command_line(),
        signature=first.signature,
        settings=settings | {"records": named},
        still=chain(_still_batch(first, ranked), still_record(picture)),
        blocks=[(f"record-{at}", one.block) for at, one in enumerate(records)],
    )
