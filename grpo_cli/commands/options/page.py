"""Results that are one page or one JSON document, and where they go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from grpo_cli.commands.eval.printing import Quiet
from grpo_cli.terminal.destination import destination
from grpo_cli.terminal.escapes import escaped_json
from grpo_cli.terminal.screen import Screen, screen_of, written

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_INDENT_2


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """In which format the page is printed, and where it goes."""

    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write here, whole or not at all.",
            show_default=False,
        ),
    ] = None
    quiet: Quiet = False

    def write(
        self,
        document: Mapping[str, Any],
        draw: Callable[[Console, Screen], None],
        *,
        failed: bool = False,
    ) -> None:
        """Writes the document as JSON, or what ``draw`` makes of it; into no file if it failed."""
        if failed and self.output not in (None, "-"):
            return
        with destination(self.output) as stream:
            if self.json:
                stream.write(escaped_json(orjson.dumps(document, option=_OPTIONS)) + b"\n")
                return
            screen = screen_of(stream)
            console = screen.console()
            draw(console, screen)
            stream.write(written(console).encode())
