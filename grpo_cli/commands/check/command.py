"""``grpo check``: is a dump sane?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from grpo_cli.commands.check.rule import ORDER, codes
from grpo_cli.commands.check.run import check as run
from grpo_cli.commands.check.view import print_findings
from grpo_cli.commands.options.option import option
from grpo_cli.commands.options.output import LIMIT, PageOptions
from grpo_cli.commands.options.source import (
    ON_ERROR,
    Files,
    ReadingOptions,
    RecordOption,
    paths,
    print_errors,
    print_notes,
    print_skipped,
)
from grpo_cli.errors import InputError
from grpo_cli.terminal.grid import print_list
from grpo_cli.terminal.messages import failures

NO = 1
_CODE = ("code", "severity", "meaning")


@dataclass(frozen=True, kw_only=True)
class CheckedOptions(ReadingOptions):
    """How the input is read: a record that cannot be read hides nothing of the others."""

    on_error: Annotated[
        Literal["stop", "skip"],
        ON_ERROR,
    ] = "skip"


def check(
    *,
    files: Files = None,
    reading: CheckedOptions,
    chosen: RecordOption,
    limit: Annotated[int, LIMIT] = 3,
    list_codes: Annotated[bool, option("--codes", "", "List all findings and stop.")] = False,
    fail_on: Annotated[
        Literal["error", "warning"],
        option("--fail-on", "error|warning", "Exit 1 from this severity on (default: error)."),
    ] = "error",
    page: PageOptions,
) -> None:
    """Check a dump for mistakes: shifts, padding, masks, temperature, dead groups.

    \b
    grpo check rollouts.jsonl
    grpo check rollouts.jsonl --json | jq '.findings[] | select(.severity == "error")'
    grpo check rollouts.jsonl --fail-on warning -q
    grpo check --codes

    Each finding has its place, its evidence and a fix. -q prints errors and warnings
    alone. Exits with 1 if there is an error; with --fail-on warning, also on a warning.

    The checks that were skipped come last, with what they need. Unreadable records give
    one error line per fault; the other records are still checked, and the exit code is 3
    whatever they show. --on-error stop stops at the first unreadable record.
    """  # noqa: D301 - \b is for the help's formatter
    with failures(as_json=page.json):
        if list_codes:
            rows = codes()
            page.write(
                {"codes": rows},
                lambda console, screen: print_list(console, screen, rows, _CODE),
                rows=rows,
            )
            return
        reader = reading.reader(paths(files), chosen.record)
        answer, unread = run(reader, limit), reader.skipped
        print_errors(unread, as_json=page.json)
        print_skipped(unread)
        if answer.records or not unread:
            page.write(
                answer,
                lambda console, screen: print_findings(
                    console, screen, answer, unread.count, quiet=page.quiet
                ),
                rows=answer.findings,
            )
        print_notes(reader.notes(), quiet=page.quiet)
    if reader.skipped:
        raise typer.Exit(InputError.exit_code)
    found = any(answer.severities[one] for one in ORDER[: ORDER.index(fail_on) + 1])
    raise typer.Exit(NO if found else 0)
