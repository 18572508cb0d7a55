"""``grpo check``: is a dump sane?"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from grpo_cli.commands.check.run import Findings
from grpo_cli.commands.check.run import check as look
from grpo_cli.commands.check.view import print_findings
from grpo_cli.commands.options.bundle import bundled
from grpo_cli.commands.options.objective import Files, paths
from grpo_cli.commands.options.page import PageOptions
from grpo_cli.commands.options.source import RecordOption, SourceOptions, tell_notes
from grpo_cli.engine import Reader
from grpo_cli.errors import InputError
from grpo_cli.terminal.messages import failures, say, tell

NO = 1

OnError = Annotated[
    Literal["stop", "skip"],
    typer.Option("--on-error", help="At a record that cannot be read: stop, or go on without it."),
]
Limit = Annotated[
    int,
    typer.Option("--limit", metavar="N", min=0, help="Findings of one kind in full; 0 for all."),
]


@bundled
def check(
    *,
    files: Files = None,
    source: SourceOptions,
    chosen: RecordOption,
    on_error: OnError = "stop",
    limit: Limit = 3,
    page: PageOptions,
) -> None:
    """Lint a dump: shifts, padding, temperatures, dead groups, duplicates and more.

    \b
    grpo check rollouts.jsonl
    grpo check rollouts.jsonl --json | jq '.findings[] | select(.severity == "error")'

    Each finding has its place, its evidence and what to do. Exit codes: 0 no
    error, 1 there is one, 2 usage, 3 bad input.
    """  # noqa: D301 - \b is for the help's formatter
    with failures(as_json=page.json):
        findings = Findings(limit)
        reader = Reader(paths(files), source.reading(chosen.record), skip=on_error == "skip")
        look(reader.records(), findings)
        document = _document(findings)
        page.write(document, lambda console, screen: print_findings(console, screen, document))
        tell_notes(reader.notices, quiet=page.quiet)
        code = _finish(findings, reader, page)
    raise typer.Exit(code)


def _document(findings: Findings) -> dict[str, Any]:
    counts = {severity: findings.severities[severity] for severity in ("error", "warning", "info")}
    return {
        "ok": not counts["error"],
        "findings": findings.rows,
        "more": findings.more,
        "counts": dict(findings.counts),
        "severities": counts,
        "records": findings.records,
        "responses": findings.responses,
        "tokens": findings.tokens,
    }


def _finish(findings: Findings, reader: Reader, page: PageOptions) -> int:
    for error in reader.skipped:
        tell(error, as_json=page.json)
    if reader.skipped:
        say(f"skipped {len(reader.skipped)} records that cannot be read")
    if findings.severities["error"]:
        return NO
    return InputError.exit_code if reader.skipped else 0
