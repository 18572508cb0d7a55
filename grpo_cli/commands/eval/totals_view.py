"""The totals, as the lines that stand on top of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from grpo_cli.commands.eval.notes import notes
from grpo_cli.terminal.numbers import aligned, shown, shown_among
from grpo_cli.terminal.prose import wrapped

Total = Mapping[str, Any]

_LABEL = len("gradient norm") + 2
_NARROWEST = 20
SUMS = ("objective", "loss", "policy")
"""What may be 0 but for rounding, beside a gradient that is not."""

_ALIGNED = (*SUMS, "kl")


def summary(total: Total, signature: str, width: int | None = None) -> Table:
    """The totals in words and numbers, the signature, and what they hide."""
    lines = _lines()
    room = None if width is None else max(width - _LABEL, _NARROWEST)
    numbers = aligned([_signed(_number(total, name)) for name in _ALIGNED])
    for name, number in zip(_ALIGNED, numbers, strict=True):
        lines.add_row(_label(name), Text(number, "bold" if name in _ALIGNED[:2] else ""))
    for name, text in _details(total):
        lines.add_row(_label(name), wrapped(Text(f" {text}"), room, 1))
    lines.add_row(_label("signature"), wrapped(Text(f" {signature}"), room, 1, bars=True))
    for note in notes(total):
        lines.add_row(Text("note", "magenta"), wrapped(Text(f" {note}"), room, 1))
    return lines


def _number(total: Total, name: str) -> str:
    return shown_among(total[name], total["gradient_norm"] if name in SUMS else None)


def chosen(total: Total, names: Sequence[str]) -> Table:
    """The totals that were asked for, by name."""
    lines = _lines()
    for name in names:
        lines.add_row(_label(name), Text(shown(total[name])))
    return lines


def _lines() -> Table:
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(no_wrap=True)
    lines.add_column(no_wrap=True)
    return lines


def _label(name: str) -> Text:
    return Text(name.replace("_", " "), "cyan")


def _signed(number: str) -> str:
    return number if number.startswith("-") else f" {number}"


def _details(total: Total) -> Iterator[tuple[str, str]]:
    if total["entropy"] is not None:
        yield "entropy", shown(total["entropy"])
    yield "denominator", f"{shown(total['denominator'])} ({total['denominator_of']})"
    if total["tokens"]:
        yield (
            "clip_fraction",
            f"{shown(total['clip_fraction'])} "
            f"(low {shown(total['clip_fraction_low'])}, high {shown(total['clip_fraction_high'])})",
        )
        yield (
            "ratio",
            f"mean {shown(total['ratio_mean'])}, "
            f"min {shown(total['ratio_min'])}, max {shown(total['ratio_max'])}",
        )
    yield "gradient_norm", shown(total["gradient_norm"])
    yield "evaluated", ", ".join(_counts(total))


def _counts(total: Total) -> Iterator[str]:
    for name in ("records", "groups", "responses", "tokens"):
        count = total[name]
        yield f"{shown(count)} {name.removesuffix('s') if count == 1 else name}"
