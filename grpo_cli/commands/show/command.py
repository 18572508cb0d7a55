"""``grpo show``: the tokens that carry a batch, or those of a record, coloured by what they do."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Annotated

import numpy as np

from grpo_cli.commands.eval.run import Run
from grpo_cli.commands.options import complete
from grpo_cli.commands.options.objective import ObjectiveOptions
from grpo_cli.commands.options.option import option
from grpo_cli.commands.options.output import (
    HavingOption,
    Html,
    PageOptions,
    Svg,
    fields_option,
    named_fields,
)
from grpo_cli.commands.options.place import destination, drawings, print_written
from grpo_cli.commands.options.source import RESPONSE, Files, ReadingOptions, paths, print_notes
from grpo_cli.commands.show.batch import (
    COLUMN,
    LACKING,
    RANK,
    FirstTokens,
    Ranked,
    rank_of,
    show_rows,
)
from grpo_cli.commands.show.page import OnPage, page_of, ranked_tokens, with_others
from grpo_cli.commands.show.picture import COLORS, Picture
from grpo_cli.commands.show.record import figure, picture_of
from grpo_cli.commands.show.view import not_printed, print_heat, print_shown
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.references import lacks_kl, without_kl
from grpo_cli.engine.rows.fields import FIELDS
from grpo_cli.engine.rows.source import Source, differences_of
from grpo_cli.engine.totals import record_sizes
from grpo_cli.errors import GrpoError, UsageError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.records import Raw, Record
from grpo_cli.terminal.messages import say
from grpo_cli.terminal.numbers import shown
from grpo_cli.terminal.paging import print_page
from grpo_cli.variants.plan import Plan


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """Which tokens, by which number, and where a picture of them goes."""

    record: Annotated[
        str | None, option("--record", "ID", "Read only this record: its id, or number from 0.")
    ] = None
    response: Annotated[list[int] | None, RESPONSE] = None
    by: Annotated[
        str | None,
        option(
            "--by",
            "COLUMN",
            f"Column that ranks tokens (default: {RANK}; contribution if --having tests clip) and "
            f"colours them: {', '.join(COLORS)}.",
            autocompletion=complete.among(COLORS),
        ),
    ] = None
    limit: Annotated[
        int | None,
        option(
            "--top --limit -n",
            "N",
            "Tokens at most, in any format (default: 20; of a record 10); 0: all.",
            min=0,
        ),
    ] = None
    strings: Annotated[
        bool,
        option("--strings", "", "A row for each token string: sums, means, clip rates.", "Output"),
    ] = False
    having: HavingOption = None
    fields: Annotated[str | None, fields_option(complete.among(FIELDS["token"]))] = None
    html: Html = None
    svg: Svg = None

    @property
    def limit_of_record(self) -> int:
        """How many tokens to list below a heat map; 0 for all."""
        return 10 if self.limit is None else self.limit

    @property
    def of_record(self) -> bool:
        """Whether the flags ask for one record."""
        chosen = (self.record, self.response, self.html, self.svg)
        return any(one is not None for one in chosen) and not self.rows

    @property
    def rows(self) -> bool:
        """Whether the flags ask for rows, which a heat map has not."""
        return self.strings or bool(self.having) or self.fields is not None


def show(
    *,
    files: Files = None,
    objective: ObjectiveOptions,
    reading: ReadingOptions,
    options: ShowOptions,
    page: PageOptions,
) -> int:
    """Show the tokens that carry a batch, or those of one record as a heat map.

    \b
    grpo show rollouts.jsonl --top 20 --by contribution
    grpo show rollouts.jsonl --having 'clip=="high" && contribution_share>0.01'
    grpo show rollouts.jsonl --strings
    grpo show rollouts.jsonl --record step-12 --response 3 --by gradient
    grpo show rollouts.jsonl --record step-12 --html page.html

    Without --record, ranks the tokens of all records by the size of their
    gradient in the batch; a clipped token has only the gradient of its KL.
    With --record, or for a file with one record, prints a heat map of the
    record evaluated alone: blue is above the middle, red below; ▾ is clipped
    low, ▴ clipped high.
    """  # noqa: D301 - \b is for the help's formatter
    _check_flags(options, page)
    if options.by is not None:
        options = replace(options, by=rank_of(options.by, ()))
    plan = objective.plan()
    reader = reading.reader(_paths(files, options), options.record)
    plain = not options.rows and page.format in (None, "table") and not page.as_json
    if plain and (options.of_record or _has_one_record(reader)):
        _show_record(reader, objective, options, page)
        return 0
    return _show_batch(reader, plan, options, page)


def _check_flags(options: ShowOptions, page: PageOptions) -> None:
    """Refuses flags that contradict each other.

    Raises:
        UsageError: for the first.
    """
    drawn = [name for name in ("html", "svg") if getattr(options, name) is not None]
    rows = "--strings" if options.strings else "--having" if options.having else ""
    rows = rows or ("" if options.fields is None else "--fields")
    rows = rows or ("--format" if page.json or page.format not in (None, "table") else "")
    if rows and (drawn or options.response):
        flag = f"--{drawn[0] if drawn else 'response'}"
        raise UsageError(
            f"{rows} is for the table of tokens; {flag} needs a single record (--record ID)"
        )


def _has_one_record(reader: Reader) -> bool:
    """Whether the input is one record; an error in it is reported by what evaluates it."""
    reader.keep_input()
    try:
        return sum(1 for _ in islice(reader.records(), 2)) == 1
    except GrpoError:
        return False


def _show_batch(reader: Reader, plan: Plan, options: ShowOptions, page: PageOptions) -> int:
    """Ranks the tokens of all records, or their strings; returns the exit code."""
    answer, run = show_rows(
        reader,
        plan,
        by=rank_of(options.by, options.having or ()),
        top=20 if options.limit is None else options.limit,
        strings=options.strings,
        having=options.having or (),
        make=partial(Run, as_json=page.json),
    )
    assert isinstance(run, Run)
    above = page.above(filter(None, (run.other_row, run.pooled)))
    if run.complete and not run.empty:
        names = named_fields(options.fields, answer.rows[0] if answer.rows else FIELDS["token"])
        chosen = answer
        if names is not None:
            chosen = replace(answer, rows=[{n: row[n] for n in names} for row in answer.rows])
        page.write(
            chosen,
            lambda console, screen: print_shown(console, screen, answer, names),
            rows=chosen.rows,
            above=above,
            notes=answer.notices,
        )
        shown_rows, of_rows = len(answer.rows), page.format not in (None, "table", "json")
        if options.limit is None and of_rows and shown_rows < answer.count and not page.quiet:
            say(f"note: {shown_rows} of {answer.count:,} rows (--top 0 writes all)")
    return run.finish(quiet=page.quiet or run.empty, printed=above)


def _show_record(
    reader: Reader, objective: ObjectiveOptions, options: ShowOptions, page: PageOptions
) -> None:
    """Draws one record: on the terminal, as a page, as a picture."""
    plan = objective.plan().of_one_batch()
    if options.html is not None:
        reader.keep_input()  # its tokens are ranked in another pass
    records = reader.records()
    first = next(records, None)
    if first is None:  # all were skipped
        raise next(iter(reader.skipped))
    raw, record = first
    breakdown = Chunk.of([record]).run(Evaluator(plan).evaluate)
    if lacks_kl(breakdown.objective.parts):
        reader.notices.update(without_kl([plan], "the record has"))
    _check(record, breakdown, options)
    source = Source([record], breakdown, lambda: record_sizes(breakdown))
    rest = iter(()) if options.record is not None else records
    left_out = ""
    without = 0
    with drawings(options.html, options.svg) as (written, drawn):
        if written is not None:
            on_page = [OnPage.of(raw, record, breakdown)]
            if options.response is None:
                tokens = len(breakdown.clip)
                on_page, left_out = with_others(on_page[0], tokens, rest, plan)
            by, top, batch = rank_of(options.by, ()), options.limit_of_record, objective.plan()
            ranked = ranked_tokens(on_page, reader, batch, by, top)
            for part in page_of(
                on_page,
                left_out,
                picture_of(source, raw, options.by, options.response),
                ranked=ranked,
                color_by="gradient" if options.by == "share" else options.by,
                only=options.response or None,
                top=top,
            ):
                written.write(part.encode())
        if written is None or options.response is not None:
            left_out = _others(rest, record)
        if drawn is not None:
            text, without = figure(picture_of(source, raw, options.by, options.response))
            drawn.write(text.encode())
    _print_notes(without, page)
    notes = reader.notes(plan) | dict.fromkeys([left_out] if left_out else ())
    if options.html is None and options.svg is None:
        above = page.above(reader.other_row(plan))
        notes = {note: at for note, at in notes.items() if note not in above}
        drawn_here = picture_of(source, raw, options.by, options.response)
        _print(source, drawn_here, above, notes, options, page)
    for path in (options.html, options.svg):
        print_written(path, quiet=page.quiet)
    print_notes(notes, quiet=page.quiet)


def _others(records: Iterator[tuple[Raw, Record]], first: Record) -> str:
    """A sentence on the records after the first, where there are; their faults do not matter."""
    with suppress(GrpoError):
        for _, other in records:
            name = f"--record {shown(other.name)}"
            return f"this is only the first record, {shown(first.name)}; {name} shows the next"
    return ""


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
    names = {"kl": breakdown.kl, "log_prob": breakdown.batch.log_probs_new}
    if options.by in LACKING and (differences_of(breakdown) | names).get(options.by) is None:
        raise UsageError(f"--by {options.by}: {LACKING[options.by]}")


def _print(
    source: Source,
    drawn: Picture,
    above: Collection[str],
    notices: Iterable[str],
    options: ShowOptions,
    page: PageOptions,
) -> None:
    if chosen := options.response:
        tokens = source.breakdown.batch.responses
        source = source.only(lambda _: np.isin(tokens.index, chosen))
    top = options.limit_of_record
    listed = Ranked(top)
    by = rank_of(options.by, ())
    listed.add(FirstTokens(COLUMN.get(by, by), top)(source))
    with destination(page.output) as stream:
        print_page(
            stream,
            lambda console, screen: print_heat(console, screen, drawn, listed.rows(), by),
            "page",
            above=above,
            notes=() if page.quiet else notices,
            shades=True,
        )
    _print_notes(not_printed(drawn), page)


def _print_notes(without: int, page: PageOptions) -> None:
    if without and not page.quiet:
        say(f"… {without:,} more tokens (--response N, or --html FILE for all)")
