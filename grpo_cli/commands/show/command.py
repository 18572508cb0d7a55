"""``grpo show``: the tokens of a record, coloured by what they do."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import typer

from grpo_cli.batch import Batch
from grpo_cli.commands.eval.printing import Quiet
from grpo_cli.commands.options import complete
from grpo_cli.commands.options.bundle import bundled
from grpo_cli.commands.options.objective import Files, ObjectiveOptions, paths
from grpo_cli.commands.options.source import SourceOptions, tell_notes
from grpo_cli.commands.show.heat import heat_svg, heat_text
from grpo_cli.commands.show.picture import COLORS, Picture, picture
from grpo_cli.commands.show.web import web_page
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.rows.rows import rows
from grpo_cli.errors import UsageError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.records import Record
from grpo_cli.terminal.destination import destination
from grpo_cli.terminal.messages import failures, say
from grpo_cli.terminal.screen import screen_of

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
        int | None,
        typer.Option("--response", metavar="N", min=0, help="This response only, from 0."),
    ] = None
    color_by: Annotated[
        str | None,
        typer.Option(
            "--color-by",
            metavar="NUMBER",
            parser=_named,
            help=f"One of {', '.join(COLORS)}. Default: contribution.",
            autocompletion=complete.among(COLORS),
            show_default=False,
        ),
    ] = None
    top: Annotated[
        int,
        typer.Option("--top", metavar="K", min=0, help="A table of the K tokens that matter most."),
    ] = 10
    color: Annotated[
        Literal["auto", "always", "never"],
        typer.Option("--color", help="auto: on a terminal, unless NO_COLOR is set."),
    ] = "auto"
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

    Blue raises the objective, red lowers it; clipped tokens are underlined. The
    record is evaluated on its own. Exit codes: 0 done, 2 usage, 3 bad input.
    """  # noqa: D301 - \b is for the help's formatter
    with failures():
        plan = objective.plan()
        reader = Reader(paths(files), source.reading(options.record))
        _, record = next(reader.records())
        breakdown = Chunk.of([record]).run(Evaluator(plan).evaluate)
        _write(_picture(record, breakdown, options), options)
        tell_notes(reader.notices, quiet=options.quiet)


def _picture(one: Record, breakdown: Breakdown, options: ShowOptions) -> Picture:
    (row,) = rows([one], breakdown, "token")
    batch = breakdown.batch
    if batch.log_probs_new is not None and batch.log_probs_old is not None:
        change = batch.log_probs_new - batch.log_probs_old
        cuts = np.split(change, batch.responses.starts[1:])
        for response, own in zip(row["responses"], cuts, strict=True):
            response["tokens"]["difference"] = own
    if options.color_by == "mismatch":
        _add_mismatch(row, batch)
    count = len(row["responses"])
    if options.response is not None and options.response >= count:
        raise UsageError(f"--response: the record has responses 0 to {count - 1}")
    color_by = options.color_by or "contribution"
    if color_by == "kl" and breakdown.kl is None:
        raise UsageError(
            "--color-by kl: nothing estimated a KL here; try --kl k3, and log_probs_ref"
        )
    return picture(row, color_by=color_by, only=options.response, clip_range=_clip_range(breakdown))


def _add_mismatch(row: dict[str, Any], batch: Batch) -> None:
    trainer = batch.log_probs_new if batch.log_probs_old is None else batch.log_probs_old
    if trainer is None or batch.log_probs_rollout is None:
        raise UsageError("--color-by mismatch: the record has no log_probs_rollout, the engine's")
    cuts = np.split(trainer - batch.log_probs_rollout, batch.responses.starts[1:])
    for response, own in zip(row["responses"], cuts, strict=True):
        response["tokens"]["mismatch"] = own


def _clip_range(breakdown: Breakdown) -> tuple[float, float] | None:
    """The ratios at which PPO's clip acts; other surrogates have none, or another meaning."""
    surrogate = breakdown.objective.surrogate
    low, high = (surrogate.values.get(name) for name in ("epsilon_low", "epsilon_high"))
    if surrogate.choice.window is None or low is None or high is None:
        return None
    return 1.0 - float(low), 1.0 + float(high)


def _write(drawn: Picture, options: ShowOptions) -> None:
    if options.html is not None:
        with destination(options.html) as stream:
            stream.write(web_page(drawn, options.top).encode())
    if options.svg is not None:
        with destination(options.svg) as stream:
            stream.write(heat_svg(drawn, options.top).encode())
    if options.html is not None or options.svg is not None:
        return
    with destination(None) as stream:
        screen = screen_of(stream)
        text, left_out = heat_text(
            drawn,
            width=screen.width or _columns(),
            color=_color(options),
            top=options.top,
            fit=screen.width is not None,
        )
        stream.write(text.encode())
    if left_out and not options.quiet:
        say(f"… {left_out:,} more tokens (--response N, or --html FILE for all)")


def _columns() -> int | None:
    """The width that COLUMNS asks for where there is no terminal."""
    return shutil.get_terminal_size((0, 0)).columns or None


def _color(options: ShowOptions) -> bool:
    if options.color == "auto":
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return sys.stdout.isatty() and not plain
    return options.color == "always"
