"""Verdicts, as ``grpo verify`` prints them: where a record first differs, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from grpo_cli.commands.verify.answer import Difference, Verdict, Verified
from grpo_cli.terminal.numbers import shown, visible
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen

_MOST = 20
"""Differing records shown in full."""


def print_verification(console: Console, screen: Screen, answer: Verified) -> None:
    """Prints one paragraph per record that differs, then the verdict."""
    differing = [row for row in answer.records if not row.agrees]
    for row in differing[:_MOST]:
        assert row.first is not None
        for line in _paragraph(row, row.first):
            console.print(wrapped(line, screen.reading, 11))
        console.print()
    if len(differing) > _MOST:
        console.print(Text(f"… {len(differing) - _MOST:,} more records differ (see --json)\n"))
    console.print(wrapped(_conclusion(answer, differing), screen.reading, 2))


def _paragraph(row: Verdict, first: Difference) -> Iterator[Text]:
    yield Text.assemble(("differs ", "bold red"), _place(row))
    yield Text.assemble(("  at       ", "cyan"), _where(first))
    yield Text.assemble(("  expected ", "cyan"), f"{first.expected!r}")
    yield Text.assemble(("  got      ", "cyan"), f"{first.got!r}")
    yield Text.assemble(("  cause    ", "cyan"), joined(first.causes) or "not recognised")
    if first.pattern:
        yield Text.assemble(("  known    ", "cyan"), first.pattern)
    if row.also:
        differ = "differs" if len(row.also) == 1 else "differ"
        yield Text.assemble(("  then     ", "cyan"), f"{', '.join(row.also)} {differ} too")


def joined(causes: Sequence[str]) -> str:
    """Joins causes that fit equally well, without repeating how they begin and end."""
    if len(causes) < 2:
        return "".join(causes)
    heads = {cause.partition(" by ")[0] for cause in causes}
    tails = {cause.rpartition(", where ")[2] for cause in causes}
    (head, *others), (tail, *more) = heads, tails
    if others or more or not all(f"{head} by " in cause for cause in causes):
        return " or ".join(causes)
    inner = [cause.removeprefix(f"{head} by ").removesuffix(f", where {tail}") for cause in causes]
    return f"{head} by {' or by '.join(inner)}, where {tail}"


def _place(row: Verdict) -> str:
    line = "" if row.line is None else f":{row.line}"
    return f"record {shown(row.id)} ({visible(row.source)}{line}), as {row.variant}"


def _where(first: Difference) -> str:
    parts = [first.key]
    if first.response is not None:
        parts.append(f"response {first.response}")
    if first.token is not None:
        parts.append(f"token {first.token}")
    stages = [*first.stages] or [first.stage]
    stage = "" if stages == [first.key] else f" (stage {' or '.join(stages)})"
    count = f"; {first.differing:,} of {first.of:,} differ" if first.of > 1 else ""
    return ", ".join(parts) + stage + count


def _conclusion(answer: Verified, differing: Sequence[Verdict]) -> Text:
    verified = answer.verified
    records = f"{verified:,} record{'' if verified == 1 else 's'}"
    if differing:
        differ = "differs" if len(differing) == 1 else "differ"
        return Text(f"{len(differing):,} of {records} {differ}", "bold red")
    compared = dict.fromkeys(key for row in answer.records for key in row.compared)
    keys = [key for key in compared if key not in answer.metrics_differ]
    agree = "agrees" if verified == 1 else "agree"
    return Text(f"{records} {agree}: {', '.join(keys)} (rtol {answer.rtol:g})", "bold green")
