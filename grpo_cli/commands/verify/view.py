"""Verdicts, as ``grpo verify`` prints them: where a record first differs, and why."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from grpo_cli.commands.verify.answer import (
    Difference,
    Replay,
    Replayed,
    StageDifference,
    Verdict,
    Verified,
    agree,
    sentences,
)
from grpo_cli.commands.verify.batches import UNITS
from grpo_cli.commands.verify.causes.located import DIFFERS, HINT, LOOK
from grpo_cli.commands.verify.compare import digits_of
from grpo_cli.commands.verify.expected import METRIC
from grpo_cli.objective.signature import choices_in
from grpo_cli.terminal.display import chosen
from grpo_cli.terminal.numbers import counted, shown, visible
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen


def draw(console: Console, screen: Screen, answer: Verified) -> None:
    """Prints the verdict on all records, then the first that differs; with --full all of them.

    If one mistake does not explain them all, the first record of each of three is printed.
    """
    if isinstance(answer, Replayed):
        for line in _replayed(answer.bundle):
            console.print(wrapped(line, screen.reading, 13))
        console.print()
    differing = [row for row in answer.records if not row.agrees]
    others = _lines(answer.causes)[1:] if _in_verdict(answer) else ()
    for line in (_verdict(answer, len(differing)), *(Text(f"  or by: {one}") for one in others)):
        console.print(wrapped(line, screen.reading, 2))
    if answer.metrics_differ or any(map(_metrics, answer.records)):
        console.print(wrapped(_metrics_verdict(answer), screen.reading, 2))
    shown_rows = differing if chosen().full else _firsts(differing, answer)
    in_verdict = answer.causes if _in_verdict(answer) else ()
    everywhere = answer.explained == len(differing)
    possible = [{*row.first.possible} for row in differing if row.first]
    for at, row in enumerate(shown_rows):
        assert row.first is not None
        console.print()
        first = _brief(
            row.first,
            possible,
            hint=not (at or answer.agrees_with or (everywhere and len(sentences(in_verdict)) == 1)),
        )
        lines = _paragraph(row, first, answer, in_verdict, everywhere=everywhere)
        for line in lines:
            console.print(wrapped(line, screen.reading, 11))
    if rest := len(differing) - len(shown_rows):
        more = counted(rest, f"more {answer.unit}", f"more {UNITS[answer.unit]}")
        console.print(Text(f"\n… {more} differ{'s' if rest == 1 else ''} (see --full or --json)"))


def _brief(first: Difference, possible: Sequence[Collection[str]], *, hint: bool) -> Difference:
    """A difference without what is not worth a line.

    Args:
        first: the difference.
        possible: what fits each record; what does not fit all of them fits by chance.
        hint: whether to keep what would narrow the causes down, which is printed once.
    """
    some = [words for words in first.possible if all(words in each for each in possible)]
    pattern = first.pattern
    if pattern and not hint:
        pattern = pattern.removesuffix(HINT)
    return replace(first, possible=some, pattern=pattern)


def _firsts(differing: Sequence[Verdict], answer: Verified) -> Sequence[Verdict]:
    """The first record of each cause, those with one first; one where a mistake explains all."""
    if len(differing) == answer.explained:
        return differing[:1]
    found: dict[tuple[str, ...], Verdict] = {}
    for row in differing:
        found.setdefault(tuple(row.first.causes) if row.first else (), row)
    return [found[words] for words in sorted(found, key=lambda words: not words)][:_SHOWN]


_SHOWN = 3
"""Records printed without --full, each with another cause."""


def _replayed(answer: Replay) -> Iterator[Text]:
    """The verdict on a bundle, then its stages in order, the first that differs marked."""
    parts = [(answer.records, "record"), (answer.steps, "step"), (answer.responses, "response")]
    counts = ", ".join(counted(*part) for part in parts)
    hashes = ", ".join(f"{text[:12]}…" for text in answer.sha256)
    whole = f"unchanged since it was written (sha256 {hashes})"
    whole = whole if hashes else "unchanged (the file is only a part of the bundle)"
    differs = answer.first_stage
    verdict = f"{differs} differs first" if differs else "all replayed stages agree"
    yield Text(f"bundle: {verdict}", "bold red" if differs else "bold green")
    yield Text(f"  {counts}; {whole}")
    for stage in answer.stages:
        style = "red" if stage.differing else "green" if stage.compared else ""
        words = f"{stage.compared:,} agree" if stage.compared else "not recorded"
        if stage.differing:
            words = f"{stage.differing:,} of {stage.compared:,} differ"
            words += f", by {stage.largest:.3g} at most" if stage.largest else ""
        reasons = "; ".join(stage.skipped) if stage.skipped else ""
        words += f" (skipped: {reasons})" if reasons else ""
        yield Text.assemble((f"  {stage.stage:<11}", "cyan"), (words, style))
        if (first := stage.first) is not None:
            numbers = f"yours {first.yours + 0.0!r}, computed {first.grpo + 0.0!r}"
            numbers += f", differs by {_off(first.yours, first.grpo)}"
            yield Text(f"             {_record(first)}, {_number(first)}: {numbers}")


def _off(yours: float, computed: float) -> str:
    """How far off a number is, and which share of the computed one that is; of 0 there is none."""
    off = abs(yours - computed)
    share = 100.0 * off / abs(computed) if computed else math.nan
    if not math.isfinite(share):
        return f"{off:.3g}"
    return f"{off:.3g} ({f'{share:.2g}' if share < 99.5 else f'{share:,.0f}'} %)"


def _in_verdict(answer: Verified) -> bool:
    """Whether the verdict says the causes, which no record then repeats."""
    return answer.explained > 1


def _paragraph(
    row: Verdict,
    first: Difference,
    answer: Verified,
    in_verdict: Sequence[str],
    *,
    everywhere: bool,
) -> Iterator[Text]:
    """A record; of several causes those that explain the most records come first.

    Causes that the verdict names for all records are not repeated.
    """
    own = f" from {row.variant}'s {first.key}"
    yield Text.assemble(f"{_record(row, answer.unit)} ", ("differs", "bold red"), own)
    yield Text.assemble(("  at       ", "cyan"), _where(first))
    yield Text.assemble(("  yours    ", "cyan"), f"{first.expected + 0.0!r}")  # no -0.0
    has_kl = not choices_in(row.signature).get("kl", "").startswith("none")
    no_kl = "" if has_kl or first.stage != "kl" or first.got else " (no KL in the loss)"
    yield Text.assemble(("  computed ", "cyan"), f"{_computed(first)}{no_kl}")
    if math.isfinite(first.expected):
        yield Text.assemble(("  differs  ", "cyan"), f"by {_off(first.expected, first.got)}")
    causes = sorted(first.causes, key=lambda words: words not in answer.causes)
    where, hint, _ = (first.pattern or "").partition(HINT)
    explained = everywhere and len(in_verdict) > 0
    if hint and answer.differing > 1:
        hint = _DISTINGUISH if explained else _LOSSES_ALONE
    where, _, stages = where.partition(LOOK)
    where = "" if where == DIFFERS else where
    unknown = _UNKNOWN + (_CONSTANTS if _has_constants(row, first) else "")
    found = _listed(causes) or [unknown if first.searched else "not searched (--causes)"]
    if answer.agrees_with:
        found = [_agreement(row, answer)]
    if explained and {*in_verdict} <= {*causes}:
        found, where = [], ""
    lines = {
        "  where    ": where.split("; ") if where else [],  # a line for each statement
        "  cause    ": found,
        "  possible ": _listed(first.possible),
        "  look at  ": [stages] if stages and not causes and not answer.agrees_with else [],
        "  next     ": [hint.removeprefix("; ")] if hint else [],
        "  or ask   ": [_question(row, first, answer.batch)]
        if unknown in found and first.key == "loss" and math.isfinite(first.expected)
        else [],
    }
    for label, texts in lines.items():
        for at, text in enumerate(texts):
            yield Text.assemble((" " * len(label) if at else label, "cyan"), text)
    if row.also:
        differ = "differs" if len(row.also) == 1 else "differ"
        yield Text.assemble(("  also     ", "cyan"), f"{', '.join(row.also)} {differ} too")


def _computed(first: Difference) -> str:
    """The computed number with two digits more than the other is written with."""
    written = digits_of(first.expected)[0] if math.isfinite(first.expected) else 0
    digits = max(_LEAST_DIGITS, written + 2)
    rounded = f"{first.got + 0.0:.{digits}g}" if digits < _ALL_DIGITS else ""
    whole = not rounded or float(rounded) == first.expected
    return f"{first.got + 0.0!r}" if whole else rounded


_LEAST_DIGITS, _ALL_DIGITS = 8, 16
_DISTINGUISH = "record loss_gradient to distinguish these causes"
_LOSSES_ALONE = "losses alone fit many mistakes: record loss_gradient to narrow them down"
_UNKNOWN = "not recognised"
_CONSTANTS = "; if your loss has other constants, set them: -p NAME=VALUE"
_KEYS = {"advantage": "adv", "correction": "corr", "aggregate": "agg"}


def _has_constants(row: Verdict, first: Difference) -> bool:
    """Whether a stage that can make the difference has constants, which the signature lists."""
    parts = choices_in(row.signature)
    values = (parts.get(_KEYS.get(stage, stage), "") for stage in first.located)
    return not first.located or any("[" in value for value in values)


def _question(row: Verdict, first: Difference, batch: str) -> str:
    """The command that looks for a convention which gives the loss of a record or batch."""
    chosen_by = [] if batch == "input" else ["--record", str(row.id)]
    if chosen_by and row.step is not None:
        chosen_by += ["--where", f"step=={row.step}"]
    if batch not in ("input", "record"):
        values = str(row.id).split("/") if "," in batch else [row.id]
        each = [f'"{value}"' if isinstance(value, str) else str(value) for value in values]
        pairs = zip(batch.split(","), each, strict=False)
        chosen_by = ["--where", " && ".join(map("==".join, pairs))]
    words = ["grpo", "match", _source(row), *chosen_by, "--loss", repr(first.expected)]
    return f"which convention gives it: {visible(shlex.join(words))}"


def _agreement(row: Verdict, answer: Verified) -> str:
    """Another variant that gives all numbers: the command that agrees, and which others do."""
    first, *others = answer.agrees_with
    shown_others = others if chosen().full else others[:_SHOWN]
    more = f" and {len(others) - _SHOWN} more: --full" if len(others) > len(shown_others) else ""
    also = f" (also {', '.join(shown_others)}{more})" if others else ""
    command = visible(f"grpo verify {shlex.quote(_source(row))} -v {first}")
    return f"yours are {first.partition(' ')[0]}'s numbers: {command} agrees{also}"


def _source(row: Verdict) -> str:
    """The file of a record, as a command line has it."""
    return "-" if row.source.startswith("<") else row.source or "FILE"


def _listed(causes: Sequence[str]) -> list[str]:
    """A line for each cause that fits, of three or more with --full; else the first."""
    if not causes:
        return []
    lines = _lines(causes)
    return [f"- {one}" for one in lines] if len(lines) > 1 else lines


def _lines(causes: Sequence[str]) -> list[str]:
    """What fits, a line each; of three or more the first, and how many others fit."""
    lines = sentences(causes)
    if chosen().full or len(lines) <= 2:
        return lines
    return [f"{lines[0]} ({len(lines) - 1} others fit too: --full)"]


def _record(row: Verdict | StageDifference, unit: str = "record") -> str:
    line = "" if row.line is None else f":{row.line}"
    if (unit, row.id) == ("batch", "input"):
        return f"the batch {visible(row.source)}"
    name = f"{unit} {shown(row.id)}"
    if isinstance(row, Verdict) and row.step is not None and unit == "record":
        name += f" of step {shown(row.step)}"
    return f"{name} ({visible(row.source)}{line})" if row.source else name


def _number(first: Difference | StageDifference) -> str:
    """Its key, response and token."""
    places = {"response": first.response, "token": first.token}
    return ", ".join(
        [first.key, *(f"{name} {at}" for name, at in places.items() if at is not None)]
    )


def _where(first: Difference) -> str:
    stages = [*first.stages] or [first.stage]
    stage = "" if stages == [first.key] else f" (stage {' or '.join(stages)})"
    count = f"; {first.differing:,} of {first.of:,} differ" if first.of > 1 else ""
    return _number(first) + stage + count


def _verdict(answer: Verified, differing: int) -> Text:
    records = counted(answer.verified, answer.unit, UNITS[answer.unit])
    if differing:
        differ = answer.how_many
        if answer.places and (rest := answer.verified - differing):
            others = agree(rest) if rest == 1 else f"{rest:,} {agree(rest)}"
            differ += f" ({answer.places}; the other {others})"
        if not _in_verdict(answer):  # a cause of one record follows
            several = answer.explained and differing > 1
            by = "; no cause explains more than one of them" if several else ""
            if not answer.explained:
                why = f": {answer.why}" if answer.why else ""
                by = f"{why} ({_within(answer)})"
            return Text.assemble((differ, "bold red"), by)
        having = [
            [row for row in answer.records if row.first and words in row.first.causes]
            for words in answer.causes
        ]
        every = "all" if answer.explained == differing else f"{answer.explained:,} of them"
        by = f", {every} explained by: "
        if min(map(len, having)) < answer.explained:  # by numbers of their own
            whole = counted(differing, answer.unit, UNITS[answer.unit])
            every = f"all {whole}" if answer.explained == differing else every
            first = shown(having[0][0].id)
            by = f": the same cause in {every}, with another number in each; in {answer.unit} "
            by += f"{first}: "
        return Text.assemble((differ, "bold red"), by, _lines(answer.causes)[0])
    keys = [key for key in _compared(answer) if not key.startswith(METRIC)]
    keys = keys or [*_compared(answer)]
    words = f"{records} {agree(answer.verified)}: {', '.join(keys)} ({_within(answer)})"
    return Text(words, "bold green")


def _within(answer: Verified) -> str:
    """The tolerance."""
    return f"rtol {answer.rtol:g}" + ("" if answer.atol is None else f", atol {answer.atol:g}")


def _compared(answer: Verified) -> dict[str, None]:
    return dict.fromkeys(key for row in answer.records for key in row.compared)


def _metrics(row: Verdict) -> list[str]:
    """The metrics that were compared, if something else was too."""
    keys = [key for key in row.compared if key.startswith(METRIC)]
    return keys if len(keys) < len(row.compared) else []


def _metrics_verdict(answer: Verified) -> Text:
    """Which metrics agree, and which differ in how many records: they fail none."""
    differ = answer.metrics_differ
    same = [key for key in _compared(answer) if key.startswith(METRIC) and key not in differ]
    parts = [f"{', '.join(same)} {agree(len(same))}"] if same else []
    parts += [
        f"{key} differs in {counted(count, answer.unit, UNITS[answer.unit])}"
        for key, count in differ.items()
    ]
    text = f"metrics: {'; '.join(parts)} (rtol {answer.metrics_rtol:g})"
    return Text(text.replace(f"{METRIC}.", ""), "magenta" if differ else "green")
