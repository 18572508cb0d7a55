"""The comparison of variants, as a table or as bars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from grpo_cli.commands.compare.answer import (
    LISTED,
    NAMES,
    SAME,
    Compared,
    ComparedVariant,
    FamilyDifference,
    Replaced,
    Unserved,
    agreeing,
    in_order,
)
from grpo_cli.commands.eval.view import SHOW
from grpo_cli.objective.signature import plain, setting
from grpo_cli.terminal.display import chosen
from grpo_cli.terminal.grid import Column, column, fitting, grid, print_hidden
from grpo_cli.terminal.numbers import and_more, brief, counted, percent, shown, shown_among, visible
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen, mark, mark_rows

_COLUMNS = (
    *("variant", "objective", "loss", "policy", "kl", "clip_fraction", "clip_fraction_low"),
    *("clip_fraction_high", "gradient_norm", "cosine", "longest_quarter", "positive_advantage"),
    *("negative_advantage", "denominator"),
)
_HEADERS = {"positive_advantage": "A>0", "negative_advantage": "A<0"}
_SPARE: Sequence[str] = (
    *("denominator", "clip_fraction_low", "clip_fraction_high", "A<0", "policy", "objective"),
    *("A>0", "kl", "longest_quarter", "clip_fraction"),
)
_SUMS = ("objective", "loss", "policy")
_PERCENT = ("longest_quarter", "positive_advantage", "negative_advantage")
_SHOW = {**SHOW, "cosine": brief}
_WORDS = {"kl_weight": "the weight of each token's KL"}
_MOST = 6
"""Differences and skipped variants that are printed without --full."""
_NAMED = 3
"""Variants that are named with a default."""


def print_comparison(
    console: Console,
    screen: Screen,
    answer: Compared,
    names: Sequence[str] | None = None,
    by: str | None = None,
) -> None:
    """Prints which variants agree, a line for each, what the shares mean, and those left out.

    ``names`` are the columns to print, None for the usual ones; ``by`` sorts the lines.
    """
    if names is None and answer.verdict:
        console.print(wrapped(Text(answer.verdict, "bold"), screen.reading, 2))
        console.print()
    if answer.variants:
        _print_rows(console, screen, answer, names, by)
        _print_differences(console, screen, answer.differences)
        _print_replaced(console, screen, answer.replaced)
    if answer.skipped:
        _print_skipped(console, screen, answer.skipped)


def _print_rows(
    console: Console, screen: Screen, answer: Compared, names: Sequence[str] | None, by: str | None
) -> None:
    """Prints the table and what its columns mean; above it where the screen cuts its end."""
    every = answer.variants
    many = len(every) > LISTED and not every[0].batch
    alike = agreeing(every) if many and not chosen().full else [[row] for row in every]
    sizes = {group[0].variant: len(group) for group in alike}
    rows = in_order([group[0] for group in alike], by)
    if many and by is None:
        likeness = {row.variant: 2.0 if row.cosine is None else row.cosine for row in rows[1:]}
        rows = [rows[0], *sorted(rows[1:], key=lambda row: likeness[row.variant])]
    columns = _columns(rows, names, sizes)
    kept, hidden = fitting(columns, _SPARE if names is None else (), screen.width)
    legend = _meanings(answer, [one.name for one in kept])
    order = f"by {by}, least first" if by else ""
    if many and by is None:
        order = f"by cosine with {rows[0].variant} (first row), most different first"
    if order:
        console.print(Text(f"sorted {order}", "dim"))
        mark(console, "the legend", None)
    above = screen.height is not None and len(rows) >= screen.height and not chosen().full
    if len(rows) < len(every) and not above:
        legend["variant"] = (
            "+N equal: loss, gradient norm and cosine of N more variants are equal within "
            f"{SAME:.2%} (--full lists them)"
        )
    if above:
        _print_meanings(console, screen, legend)
        print_hidden(console, screen, hidden)
        console.print()
    console.print(grid(kept))
    mark_rows(console, "variant", [sizes[row.variant] for row in rows])
    if not above:
        print_hidden(console, screen, hidden)
        nouns = ("record", "group", "response", "token")
        counts = ", ".join(counted(getattr(answer, f"{noun}s"), noun) for noun in nouns)
        console.print(Text(f"\n{counts}"))
        _print_meanings(console, screen, legend)


def _columns(
    rows: Sequence[ComparedVariant], names: Sequence[str] | None, sizes: Mapping[str, int]
) -> list[Column]:
    """The columns; ``sizes``: how many variants share a row."""
    naming = [name for name in rows[0].batch if name not in NAMES]
    columns = []
    for field in (*naming, *_COLUMNS) if names is None else names:
        values, header = [row.fields()[field] for row in rows], _HEADERS.get(field, field)
        if field.startswith(_PERCENT):
            columns.append(column(header, values, show=percent, numeric=True))
        elif field in _SUMS:
            texts = [shown_among(getattr(row, field), row.gradient_norm) for row in rows]
            columns.append(column(header, texts, show=str, numeric=True))
        elif field == "variant":
            equal = {name: f" (+{size - 1} equal)" for name, size in sizes.items() if size > 1}
            columns.append(column(header, [name + equal.get(name, "") for name in values]))
        else:
            columns.append(column(header, values, show=_SHOW.get(field, shown)))
    return columns


def _meanings(answer: Compared, names: Sequence[str]) -> dict[str, str]:
    """What the columns mean, of those that are shown."""
    first = answer.variants[0]
    meanings = {
        "cosine": f"cosine: between a variant's token gradients and those of {first.variant}",
        "longest_quarter": "longest quarter: share of Σ|gradient| in the longest quarter of the "
        f"responses, which has {percent(first.longest_quarter_tokens)} of the tokens",
        "A>0": "A>0, A<0: share of Σ|gradient| in the tokens with a positive (negative) advantage",
    }
    return {name: line for name, line in meanings.items() if name in names}


def _print_meanings(console: Console, screen: Screen, legend: Mapping[str, str]) -> None:
    for line in legend.values():
        console.print(wrapped(Text(line, "dim"), screen.reading, 2))
        mark(console, "the legend", None)


def _print_differences(console: Console, screen: Screen, rows: Sequence[FamilyDifference]) -> None:
    """Prints in which values rows of one family differ."""
    if rows:
        console.print()
    for row in rows if chosen().full else rows[:_MOST]:
        first, *others = row.variants
        values = [
            f"{_WORDS.get(name, name)} ({plain(mine)} against {plain(theirs)})"
            for name, (mine, theirs) in row.hyperparameters.items()
        ]
        listed = " and ".join(filter(None, (", ".join(values[:-1]), values[-1])))
        more = f", and use different choices for {', '.join(row.stages)}" if row.stages else " only"
        line = Text(f"{first} and {', '.join(others)} differ in {listed}{more}")
        console.print(wrapped(line, screen.reading, 2))
        mark(console, "setting difference")
    if len(rows) > _MOST and not chosen().full:
        more = f"… {len(rows) - _MOST:,} more differences between variants of one name (--full)"
        console.print(Text(more, "dim"))
        mark(console, "setting difference", len(rows) - _MOST)


def _print_replaced(console: Console, screen: Screen, rows: Sequence[Replaced]) -> None:
    """Prints each setting with the variants whose default it replaces."""
    found: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        for name, (own, used) in row.hyperparameters.items():
            variants = found.setdefault(setting(name, used), {}).setdefault(plain(own), [])
            variants.append(row.variant)
    if found:
        lines = []
        for text, each in found.items():
            defaults = (f"{own} in {and_more(names, _NAMED)}" for own, names in each.items())
            lines.append(f"{text} (default: {'; '.join(defaults)})")
        text = "settings taken from the records (--own keeps the variants' own)"
        console.print()
        console.print(wrapped(Text(f"{text}: {', '.join(lines)}"), screen.reading, 2))
        mark(console, "replaced setting", sum(len(row.hyperparameters) for row in rows))


def _print_skipped(console: Console, screen: Screen, skipped: Sequence[Unserved]) -> None:
    """Prints what is missing: in a line, or up to 6 variants, and --full all, by name."""
    if len(skipped) > _MOST and not chosen().full:
        counts = Counter(one.missing or one.reason for one in skipped)
        rows = counts.most_common()
        lacks = ", ".join(f"{n:,} need{'s' if n == 1 else ''} {name}" for name, n in rows)
        line = f"skipped {len(skipped):,} variants: {lacks} (--full lists them)"
        console.print()
        console.print(wrapped(Text(visible(line)), screen.reading, 2))
        mark(console, "skipped variant", len(skipped))
        return
    place, *others = {one.place for one in skipped}
    where = f" ({visible(place)})" if place is not None and not others else ""
    console.print(Text(f"\nvariants skipped because an input is missing{where}", "bold"))
    reasons: dict[str, list[str]] = {}
    for one in skipped:
        lack = f"{one.missing} is missing{'' if where else f' in {one.place}'}"
        reason = f"{lack}: {one.advice}" if one.missing else one.reason
        reasons.setdefault(reason, []).append(one.variant)
    for reason, names in reasons.items():
        console.print(wrapped(Text(visible(reason)), screen.reading, 2))
        count = f"{len(names):,} variants: " if len(names) > 1 else ""
        console.print(wrapped(Text(f"  {count}{', '.join(names)}", "dim"), screen.reading, 4))
        mark(console, "skipped variant", len(names))
