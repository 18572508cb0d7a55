"""The table of ``split``."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from grpo_cli.commands.split.answer import SplitAggregate, SplitUp
from grpo_cli.terminal.grid import column, print_fitting
from grpo_cli.terminal.numbers import counted, percent, shown, visible
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen, mark

_SPARE = ("norm", "along_global")


def print_splits(console: Console, screen: Screen, answer: SplitUp) -> None:
    """Prints how the batch is cut, then a line per aggregation."""
    console.print(wrapped(Text(_cutting(answer), "bold"), screen.width, 2))
    if answer.cuts_nothing:
        console.print(wrapped(Text(_NOTHING, "bold"), screen.width))
    if answer.splits:
        console.print()
        _print_rows(console, screen, answer.splits)
    if answer.skipped:
        names = [visible(one.aggregate) for one in answer.skipped]
        text = f"skipped (missing inputs): {', '.join(names)} (--json says why)"
        console.print(wrapped(Text(text, "dim"), screen.width, 2))
        mark(console, "skipped aggregation", len(names))


def _print_rows(console: Console, screen: Screen, rows: Sequence[SplitAggregate]) -> None:
    """Prints what the columns mean, and a line per aggregation."""
    own = next((_ADDED_UP[row.accumulation] for row in rows if row.own), "")
    for line in (*_MEANING, f"*: the variant's own aggregation{own}"):
        console.print(wrapped(Text(line, "dim"), screen.width, 2))
    console.print()
    columns = [
        column("aggregate", [(f"{row.aggregate} *" if row.own else row.aggregate) for row in rows]),
        column("loss_reported", [row.reported for row in rows]),
        column("loss_global", [row.global_ for row in rows]),
        column("invariant", rows, show=_invariant, style=_style),
        column("along_global", [row.factor for row in rows], show=_times, numeric=True),
        column("norm", [row.norm_factor for row in rows], show=_times, numeric=True),
        column(
            "gradient_difference",
            [row.gradient_difference for row in rows],
            show=percent,
            numeric=True,
        ),
    ]
    print_fitting(console, screen, columns, _SPARE, "aggregation")


_NOTHING = "every micro-batch is a whole step, so nothing is split: try a smaller --micro-batch"

_ADDED_UP = {
    "mean": "",
    "sum": "; its trainer sums micro-batches",
    "by tokens": "; its trainer averages micro-batches by their tokens",
    "by responses": "; its trainer averages micro-batches by their responses",
    "whole step": "; its denominator counts the whole step",
}
"""What to add to the name of the variant's own aggregation, by its accumulation."""

_MEANING = (
    "reported: the loss that the trainer logs; global: that of the undivided batch",
    "invariant: yes, by its formula; here: on this data, but not on all",
    "gradient difference: ‖split − global‖ / ‖global‖; norm: ‖split‖ / ‖global‖",
    "along global: how far the split's gradient goes along the global one",
)


def _cutting(answer: SplitUp) -> str:
    steps = answer.steps
    return (
        f"{answer.variant}: {shown(answer.responses)} responses in "
        f"{counted(answer.micro_batches, 'micro-batch', 'micro-batches')} "
        f"of {shown(answer.micro_batch)}, "
        f"{shown(answer.accumulate)} accumulated on {counted(answer.ranks, 'rank')}"
        + ("" if steps == 1 else f"; {shown(steps)} optimiser steps, averaged")
    )


def _invariant(row: SplitAggregate) -> str:
    if row.invariant is None:
        return "–"
    return "no" if not row.invariant else "yes" if row.invariant_by == "formula" else "here"


def _style(row: SplitAggregate) -> str:
    return "green" if row.invariant_by == "formula" else "magenta"


def _times(value: float | None) -> str:
    return "–" if value is None else f"×{value:.4f}"
