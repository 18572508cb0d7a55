"""How ``--help`` is laid out: options by what they are about, commands with all their words."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup

from grpo_cli.errors import UsageError
from grpo_cli.terminal.messages import failures

PANELS: Mapping[str, tuple[str, ...]] = {
    "Which objective (`grpo variants --stage kl` lists the choices of --kl)": (
        *("--variant", "--variants", "--advantage", "--ratio", "--surrogate", "--kl"),
        *("--correction", "--aggregate", "--kl-aggregate", "--entropy-aggregate", "--epsilon"),
        *("--epsilon-low", "--epsilon-high", "--beta", "--param", "--batch"),
    ),
    "What is read": (
        *("--from", "--map", "--where", "--record", "--response", "--group", "--group-by"),
        *("--group-size", "--group-anywhere", "--on-error", "--max-errors", "--unpack"),
    ),
    "What is printed": (
        *("--level", "--format", "--json", "--fields", "--only", "--nest", "--limit", "--output"),
        *("--quiet", "--color", "--full", "--no-pager"),
    ),
    "How it runs": ("--jobs", "--help"),
}
"""Options that several commands have, by what they are about. Those of one command come first."""

_OWN = "Options"

if TYPE_CHECKING:
    Context = Any
    Formatter = Any


class PanelCommand(TyperCommand):
    """A command whose options are printed in panels, and are not taken for others."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Refuses an option with one dash, which would be read as -v ariant."""
        known = {flag for parameter in self.get_params(ctx) for flag in parameter.opts}
        for word in takewhile(lambda word: word != "--", args):
            name, equals, value = word.partition("=")
            if f"-{name}" in known and len(name) > 2:
                with failures():
                    raise UsageError(f"no such option: {name}; two dashes: -{name}{equals}{value}")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Context, formatter: Formatter) -> None:
        """Writes the arguments, the command's own options, and the panels of the others."""
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], _OWN: []}
        panels |= {name: [] for name in PANELS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                argument = parameter.param_type_name == "argument"
                panels["Arguments" if argument else panel_of(parameter.opts)].append(record)
        for name, records in panels.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


def panel_of(flags: list[str]) -> str:
    """The panel of an option."""
    found = (name for name, known in PANELS.items() if not set(flags).isdisjoint(known))
    return next(found, _OWN)


class FrontPage(TyperGroup):
    """The command itself: its help is a page that fits a terminal and names every command."""

    def format_usage(self, ctx: Context, formatter: Formatter) -> None:
        """Writes the usage in one line."""
        formatter.write_usage(ctx.command_path, "COMMAND [OPTIONS] [FILE…]")

    def format_options(self, ctx: Context, formatter: Formatter) -> None:
        """Writes nothing: the page has them."""

    def format_commands(self, ctx: Context, formatter: Formatter) -> None:
        """Writes nothing: the page has them, with what each is for."""
