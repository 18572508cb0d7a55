"""``grpo show``: the tokens of a record, coloured by what they do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import typer

from grpo_cli.commands.options import complete
from grpo_cli.commands.options.everywhere import bundled, command_line
from grpo_cli.commands.options.objective import ObjectiveOptions, advising
from grpo_cli.commands.options.output import Quiet
from grpo_cli.commands.options.place import destination, drawings
from grpo_cli.commands.options.source import Files, SourceOptions, paths, tell_notes
from grpo_cli.commands.page.block import block, clip_range
from grpo_cli.commands.page.page import html
from grpo_cli.commands.show.figure import figure
from grpo_cli.commands.show.heat import left_out, print_heat
from grpo_cli.commands.show.picture import (
    COLORS,
    Picture,
    moves_clipped,
    picture,
)
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.references import lacks_kl, without_kl
from grpo_cli.engine.rows.rows import rows
from grpo_cli.engine.rows.source import Source, differences_of
from grpo_cli.errors import GrpoError, UsageError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.records import Raw, Record
from grpo_cli.terminal.messages import failures, say
from grpo_cli.terminal.numbers import shown
from grpo_cli.terminal.paging import print_page

_OTHER_NAMES = {"log_ratio": "difference", "log_prob_difference": "difference"}


def _named(text: str) -> str:
    name = text.replace("-", "_")
    name = _OTHER_NAMES.get(name, name)
    if name in COLORS:
        return name
    raise typer.BadParameter(f"expected one of {', '.join(COLORS)}, got {text!r}")


def _path(flag: str, what: str) -> Any:
    return typer.Option(flag, metavar="FILE", help=f"Write {what} instead.", show_default=False)


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """Which tokens, in which colours, and where they go."""

    record: Annotated[
        str | None,
        typer.Option(
            "--record",
            metavar="ID",
            help="The record's id, or its number from 0. Default: the first.",
            show_default=False,
        ),
    ] = None
    response: Annotated[
        list[int] | None,
        typer.Option(
            "--response", metavar="N", min=0, help="This response only, from 0; repeatable."
        ),
    ] = None
    color_by: Annotated[
        str | None,
        typer.Option(
            "--color-by",
            metavar="NUMBER",
            parser=_named,
            help=f"One of {', '.join(COLORS)}. Default: ratio; on-policy, gradient.",
            autocompletion=complete.among(COLORS),
            show_default=False,
        ),
    ] = None
    top: Annotated[
        int,
        typer.Option("--top", metavar="K", min=0, help="A table of the K tokens that matter most."),
    ] = 10
    html: Annotated[str | None, _path("--html", "a page for the browser")] = None
    svg: Annotated[str | None, _path("--svg", "a picture")] = None
    quiet: Quiet = False


@bundled
def show(
    *,
    files: Files = None,
    objective: ObjectiveOptions,
    source: SourceOptions,
    options: ShowOptions,
) -> None:
    """Show the tokens of a record as text, coloured by what each of them does.

    \b
    grpo show rollouts.jsonl --response 3 --color-by gradient
    grpo show rollouts.jsonl --record step-12 --html page.html

    Blue is above the middle, red below it; ▾ marks tokens clipped low, ▴ high. The
    record is evaluated on its own. Exit codes: 0 done, 2 usage, 3 bad input.
    """  # noqa: D301 - \b is for the help's formatter
    with failures():
        plan = objective.of_one_batch()
        reader = Reader(_paths(files, options), source.reading(options.record))
        records = reader.records()
        raw, record = next(records)
        others = _others(records, record) if options.record is None else {}
        with advising("show", reader, objective):
            breakdown = Chunk.of([record]).run(Evaluator(plan).evaluate)
        if lacks_kl(breakdown.objective.parts):
            reader.notices.update(without_kl([plan], "the record has"))
        _check(record, breakdown, options)
        without = 0
        with drawings(options.html, options.svg) as (written, drawn):
            if written is not None:
                for part in _page(raw, record, breakdown, options):
                    written.write(part.encode())
            if drawn is not None:
                text, without = figure(_picture(record, breakdown, options))
                drawn.write(text.encode())
        _tell(without, options)
        notes = reader.notes(plan) | others
        if options.html is None and options.svg is None:
            _print(_picture(record, breakdown, options), notes, options)
        tell_notes(notes, quiet=options.quiet)


def _others(records: Iterator[tuple[Raw, Record]], first: Record) -> dict[str, None]:
    """Says that there are more records, where there are; what is wrong with them is not asked."""
    with suppress(GrpoError):
        for _, other in records:
            first_is = f"{shown(first.name)} is the first record: --record {shown(other.name)}, …"
            return {f"{first_is} shows another": None}
    return {}


def _paths(files: list[str] | None, options: ShowOptions) -> list[str]:
    """The files to read; of ``--html FILE`` alone, that this is the one to write."""
    try:
        return paths(files)
    except UsageError as error:
        for flag, page in (("--html", options.html), ("--svg", options.svg)):
            if page is not None:
                advice = f"{flag} names the page to write: grpo show FILE {flag} PAGE"
                raise UsageError(f"{error}; {advice}") from None
        raise


def _check(record: Record, breakdown: Breakdown, options: ShowOptions) -> None:
    """Refuses what the record has not.

    Raises:
        UsageError: for a response or a quantity that there is none of.
    """
    count = len(record.widths)
    if max(options.response or [0]) >= max(count, 1):
        raise UsageError(f"--response: the record has responses 0 to {count - 1}")
    if options.color_by == "kl" and breakdown.kl is None:
        raise UsageError(
            "--color-by kl: nothing estimated a KL here; try --kl k3, and log_probs_ref"
        )
    lacking = options.color_by not in differences_of(breakdown)
    if options.color_by == "log_prob":
        lacking = breakdown.batch.log_probs_new is None
    if options.color_by in _DIFFERENCES and lacking:
        raise UsageError(f"--color-by {options.color_by}: {_DIFFERENCES[options.color_by]}")


_DIFFERENCES = {
    "mismatch": "the record has no log_probs_rollout, the engine's",
    "log_prob": "the record has ratios, and no log-probs",
    "difference": "the record has ratios, and no log-probs of two policies",
}


def _page(raw: Raw, record: Record, breakdown: Breakdown, options: ShowOptions) -> Iterator[str]:
    settings = {"color_by": options.color_by, "only": options.response or None, "top": options.top}
    return html(
        title=f"record {shown(record.name)}",
        place=record.source + ("" if record.line is None else f":{record.line}"),
        command=command_line(),
        signature=breakdown.objective.signature,
        settings=settings,
        blocks=[("record", block(raw, record, breakdown))],
    )


def _picture(record: Record, breakdown: Breakdown, options: ShowOptions) -> Picture:
    (row,) = rows(Source([record], breakdown), "token")
    starts = breakdown.batch.responses.starts[1:]
    moved, mover = moves_clipped(breakdown)
    columns = {**differences_of(breakdown), "moved": moved}
    if options.color_by == "log_prob" and breakdown.batch.log_probs_new is not None:
        columns["log_prob"] = breakdown.batch.log_probs_new
    for name, values in columns.items():
        for response, part in zip(row["responses"], np.split(values, starts), strict=True):
            response["tokens"][name] = part
    return picture(
        row,
        color_by=options.color_by,
        only=options.response or None,
        clip_range=clip_range(breakdown),
        mover=mover,
    )


def _print(drawn: Picture, notices: Iterable[str], options: ShowOptions) -> None:
    with destination(None) as stream:
        print_page(
            stream,
            lambda console, screen: print_heat(console, screen, drawn, options.top),
            "page",
            notes=() if options.quiet else notices,
            shades=True,
        )
    _tell(left_out(drawn), options)


def _tell(without: int, options: ShowOptions) -> None:
    if without and not options.quiet:
        say(f"… {without:,} more tokens (--response N, or --html FILE for all)")
