"""The options of ``grpo show``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from grpo_cli.commands.options import complete
from grpo_cli.commands.options.output import Quiet
from grpo_cli.commands.show.picture import COLORS

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
        list[int] | None,
        typer.Option(
            "--response", metavar="N", min=0, help="This response only, from 0; repeatable."
        ),
    ] = None
    color_by: Annotated[
        str | None,
        typer.Option(
            "--color-by",
            metavar="NUMBER",
            parser=_named,
            help=f"One of {', '.join(COLORS)}. Default: ratio; on-policy, gradient.",
            autocompletion=complete.among(COLORS),
            show_default=False,
        ),
    ] = None
    top: Annotated[
        int,
        typer.Option("--top", metavar="K", min=0, help="A table of the K tokens that matter most."),
    ] = 10
    html: Annotated[str | None, _path("--html", "a page for the browser")] = None
    svg: Annotated[str | None, _path("--svg", "a picture")] = None
    quiet: Quiet = False
