"""Findings, as ``grpo check`` prints them: by severity, then by kind, with what to do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from grpo_cli.commands.check.answer import Checked, Finding, MismatchFound, NotChecked
from grpo_cli.commands.check.lines import ANOTHER
from grpo_cli.commands.check.notes import FEWER_THAN
from grpo_cli.commands.check.rule import table
from grpo_cli.objective.mismatch import (
    OUTLIERS,
    POSITION,
    PRECISION,
    STEP,
    SUPPORT,
    TOKEN,
    TURN,
    VERSION,
)
from grpo_cli.terminal.display import chosen
from grpo_cli.terminal.numbers import counted, visible
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen

_CAUSES = {
    OUTLIERS: ("a minority of tokens", "at tokens that differ by {}"),
    PRECISION: ("rounding", "rounding, {}"),
    SUPPORT: ("which side is surer", "at tokens of {}"),
    VERSION: ("the age of the weights", "at tokens of {} of the weights"),
    TURN: ("the turn", "in {}"),
    TOKEN: ("one token", "at {}"),
    POSITION: ("the position", "at the {} of responses"),
    STEP: ("the step", "{}"),
}
"""What may explain a mismatch, in words, and where the most of it is."""
_MOST = 0.5
"""The share of the KL from which on it says by itself where the KL is."""
_NATURES = (OUTLIERS, PRECISION, SUPPORT)
"""What a finding on the log-probs says better."""
_SIDES = {
    f"{one} surer": f"at tokens of which the {one} is surer" for one in ("rollout", "trainer")
} | {
    "1st quarter": "at the 1st quarter of responses, without the first token",
    "4th quarter": "at the 4th quarter of responses, without the last token",
}
_STYLES = {"error": "bold red", "warning": "bold magenta", "info": "bold cyan"}


def draw(console: Console, screen: Screen, answer: Checked) -> None:
    """Prints the first findings of each code."""
    print_findings(console, screen, answer, most=3)


def print_findings(
    console: Console,
    screen: Screen,
    answer: Checked,
    unread: int = 0,
    *,
    most: int | None = None,
    quiet: bool = False,
) -> None:
    """Prints how many findings there are, then these kind by kind, the worst first.

    Args:
        console, screen: where.
        answer: what was found.
        unread: records that could not be read, not counted in the answer.
        most: how many findings of each code and severity are looked at; None: all.
        quiet: whether to print only errors and warnings, without what was not checked.
    """
    _print_counts(console, answer, unread, quiet=quiet)
    rows = [row for row in answer.findings if not (quiet and row.severity == "info")]
    for severity in _STYLES:
        for code in dict.fromkeys(row.code for row in rows if row.severity == severity):
            of_kind = [row for row in rows if (row.code, row.severity) == (code, severity)]
            more = answer.more_by_severity.get(code, {}).get(severity, 0)
            more += len(of_kind) - len(of_kind[:most])
            console.print()
            rest = "--limit 0 for all" if most is None else ".findings has all"
            _print_kind(console, screen.reading, of_kind[:most], more, rest)
    others = answer.mismatch, answer.advantages
    if rows and not quiet and any([*others, answer.not_checked, answer.not_compared]):
        console.print()
    if answer.mismatch is not None and not quiet:
        if answer.mismatch.normal and answer.mismatch.named is None and not chosen().full:
            size, setting = answer.mismatch.rms, answer.mismatch.setting
            words = f"engine against trainer: {size:.3g} nats RMS, normal for {setting}"
            console.print(wrapped(Text(words), screen.reading, 2))
        else:
            uneven = any("explains" in one.evidence for one in answer.findings)
            codes = _of_mismatch(answer.findings)
            brief = uneven and not chosen().full
            for words in mismatch_lines(answer.mismatch, codes, brief=brief):
                console.print(wrapped(Text(words), screen.reading, 4))
            console.print()
    if answer.advantages and not quiet:
        named = {ANOTHER: "no formula that grpo knows"}
        listed = (
            f"{named.get(one, one)} in {counted(many, 'group')}"
            for one, many in answer.advantages.items()
        )
        console.print(wrapped(Text(f"advantages: {'; '.join(listed)}"), screen.reading, 2))
    if answer.not_checked and not quiet:
        words = _not_checked(answer.not_checked, math.inf if chosen().full else screen.reading)
        console.print(wrapped(Text(words, "dim"), screen.reading, 2))
    if answer.not_compared and not quiet:
        whole = answer.not_compared == answer.records
        where = "any record" if whole else f"{answer.not_compared:,} of {answer.records:,} records"
        codes = {rule.code for rule in table() if rule.explains}
        found = (one.code for one in answer.findings if one.severity != "info")
        causes = " or ".join(dict.fromkeys(code for code in found if code in codes))
        words = (
            f"log-probs of different columns were not compared in {where}: fix the {causes} "
            "findings there first"
        )
        console.print(wrapped(Text(words, "dim"), screen.reading, 2))


def _print_counts(console: Console, answer: Checked, unread: int, *, quiet: bool) -> None:
    counts, records = answer.conclusion
    if quiet and (info := answer.severities["info"]):
        counts = counts.removesuffix(f"{info:,} info").removesuffix(", ")
    style = "bold green" if answer.ok else "bold red"
    if unread:
        failed = Text.assemble((f"{counted(unread, 'record')} cannot be read", "bold red"), "; ")
        console.print(failed, end="")
        records = f"the other {records.removeprefix('1 ')}"
    console.print(Text.assemble((counts, style), f" in {records}"))


def _print_kind(
    console: Console, width: int, rows: Sequence[Finding], more: int, rest: str
) -> None:
    severity, code = rows[0].severity, rows[0].code
    at = "" if rows[0].step is None else f" at step {rows[0].step}"
    least = "at least " if code == "unrelated" else ""  # no short response is judged alone
    every = len(rows) + more
    if severity == "info" and every > 1 and not chosen().full:
        hint = "--full for more" if rest.startswith("--") else rest
        counts = f": {every:,} findings, the first{at} ({hint}): "
        named = Text.assemble((severity, _STYLES[severity]), " ", (code, "bold"), counts)
        place, message = (rows[0].where, "cyan"), visible(rows[0].message)
        console.print(wrapped(Text.assemble(named, place, f": {message}"), width, 2))
        return
    count = f": {least}{every:,} findings, the first{at} ({rest})" if more else ""
    console.print(Text.assemble((severity, _STYLES[severity]), " ", (code, "bold"), count))
    if more:  # the first of each kind
        firsts = dict[str, Finding]()
        rows = [row for row in rows if firsts.setdefault(row.advice, row) is row]
    for row in rows:
        found = Text.assemble("  ", (row.where, "cyan"), f": {visible(row.message)}")
        console.print(wrapped(found, width, 4))
    for advice in dict.fromkeys(row.advice for row in rows):
        console.print(wrapped(Text(f"  → {advice}", "dim"), width, 4))


def _of_mismatch(findings: Sequence[Finding]) -> Iterable[str]:
    """The codes of findings that may explain a mismatch: they are on the same columns.

    Those that are no info, if there are any.
    """
    compared = {"log_probs_old", "log_probs_rollout"}
    found = [
        one
        for one in findings
        if one.code != "rollout-mismatch" and compared & {*one.evidence.get("columns", ())}
    ]
    severe = [one for one in found if one.severity != "info"]
    return dict.fromkeys(one.code for one in severe or found)


def mismatch_lines(
    found: MismatchFound, codes: Iterable[str] = (), *, brief: bool = False
) -> list[str]:
    """Says how large a mismatch is, whether that is normal, and what explains it.

    Args:
        found: the mismatch.
        codes: of findings that were printed before it, and may explain it.
        brief: whether a finding that was printed before it says what explains it.
    """
    named = " and ".join(codes)
    size = (
        f"log π_old − log π_rollout: {found.rms:.3g} nats RMS, mean size {found.mean_abs:.3g}, "
        f"KL {found.kl:.3g} per token; the 0.1% of tokens that differ most carry {found.worst:.0%} "
        "of the KL"
    )
    is_outlying = found.normal and named == "outliers"
    normal = "normal except for the outliers found above" if is_outlying else "normal"
    lines = [size]
    if found.normal or not named:
        lines.append(f"  {found.floor.replace('normal', normal, 1)}; {found.source}")
    if brief:
        return lines
    causes = sorted(found.causes, key=lambda one: (one.name != found.named, -one.explains))
    for cause in causes:
        if cause.counts and not (named and cause.name in _NATURES):
            top, (words, where) = cause.kinds[0], _CAUSES[cause.name]
            where = _SIDES.get(top.name, where.format(top.name))
            explains = f"{words} explains {cause.explains:.0%} of the KL: "
            most, of = (explains, "it") if top.share < _MOST else ("", "the KL")
            tokens = counted(top.tokens, "token")
            lines.append(f"  {most}{100.0 * top.share:.3g}% of {of} is {where} ({tokens})")
    if named and not is_outlying:
        lines.append(f"  likely cause: {named}, found above")
    elif found.named is None:
        *others, last = dict.fromkeys(_CAUSES[each.name][0] for each in found.causes) or [""]
        measured = f"{', '.join(others)} or {last}" if others else last
        what = f"not explained by {measured}" if measured else "no cause could be measured"
        rest = "noise does this" if found.normal else "compare weights, temperature and precision"
        lines.append(f"  {what}: {rest}")
    return lines


def _not_checked(skipped: Sequence[NotChecked], width: float) -> str:
    """Lists skipped rules and what each needs, as many as two lines have room for."""
    line = f"{counted(len(skipped), 'check')} skipped: "
    for at, row in enumerate(skipped):
        needs = row.missing[-1][0].removeprefix(FEWER_THAN)  # the field that is the rarest
        part = f"{row.about} (needs {needs})"
        rest = len(skipped) - at - 1
        more = f", … {rest} more (--full)" if rest else ""
        if len(line) + len(part) + len(more) > 2 * width:
            return f"{line}… {rest + 1} more (--full)"
        line += f"{part}, " if rest else part
    return line
