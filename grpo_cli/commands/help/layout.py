"""How ``--help`` is laid out: the usual options, and with ``--help-all`` the others in panels."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any, get_args

from typer.core import TyperCommand, TyperGroup

from grpo_cli.commands.options.everywhere import print_help
from grpo_cli.commands.options.option import ALL, Panel
from grpo_cli.errors import UsageError
from grpo_cli.terminal.messages import failures

HINTS = {"Objective": "Objective (each replaces a part of the variant; `grpo variants --stage kl`)"}
"""Headings of panels that say more than their name."""

_RANGE = re.compile(r"\s*\[[^\]]*x[<>][^\]]*\]$")

if TYPE_CHECKING:
    Context = Any
    Formatter = Any


class PanelCommand(TyperCommand):
    """A command whose options are printed in panels, and are not taken for others."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Refuses an option with one dash, which would be read as -v ariant.

        A bare ``--html`` of ``report``, which writes nothing else, is left out.
        """
        if self.name == "report":
            args = [word for word, after in pairwise([*args, "-"]) if (word, after[:1]) != _BARE]
        if self.name == "help" and args and args[0] not in _OF_HELP:
            args = ["--", *args] if args[0].startswith("-") else args  # a flag that is asked about
        known = {flag for parameter in self.get_params(ctx) for flag in parameter.opts}
        for word in takewhile(lambda word: word != "--", args):
            name, equals, value = word.partition("=")
            if f"-{name}" in known and len(name) > 2:
                with failures():
                    raise UsageError(f"no such option: {name}; write -{name}{equals}{value}")
        with failures():
            self._refuse_given_twice(ctx, args)
        return super().parse_args(ctx, args)

    def get_help_option(self, ctx: Context) -> Any:
        """``--help``, whose text goes to the pager where the terminal is too low."""
        found = super().get_help_option(ctx)
        if found is not None:
            found.callback = print_help
        return found

    def _refuse_given_twice(self, ctx: Context, args: list[str]) -> None:
        """Refuses a flag that is given twice, since only the last would hold."""
        given: list[Any] = []
        with suppress(Exception):  # what cannot be parsed is refused with a reason later
            given = self.make_parser(ctx).parse_args([*args])[2]
        for one in given:
            flag = one.opts[0]
            if flag in _ONCE and given.count(one) > 1:
                several = "; for several: grpo compare -v A,B" if flag == "--variant" else ""
                raise UsageError(f"{flag} is given twice{several}")

    def format_help_text(self, ctx: Context, formatter: Formatter) -> None:
        """Writes the text, without ``--help-all`` up to the paragraph after the examples.

        A flag in it never begins a line, where it would seem an option's.
        """
        start, own = len(formatter.buffer), self.help
        parts = (own or "").split("\n\n")
        text = "\n\n".join(parts if ctx.meta.get(ALL) else parts[:_SHORT])
        self.help = _BEFORE_FLAG.sub(_NO_BREAK, text)
        super().format_help_text(ctx, formatter)
        self.help = own
        formatter.buffer[start:] = [
            text.replace(_NO_BREAK, " ") for text in formatter.buffer[start:]
        ]

    def format_options(self, ctx: Context, formatter: Formatter) -> None:
        """Writes arguments and options; those in panels with ``--help-all``, else their number."""
        panels: dict[str | None, list[tuple[str, str]]] = {None: []}
        panels |= {panel: [] for panel in get_args(Panel)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and "--help" not in parameter.opts:
                needed = " (required)" if parameter.required else ""
                flags, text = record[0], _RANGE.sub("", record[1]).strip()
                text = text.removesuffix("[required]").strip() + needed
                panels[getattr(parameter, "rich_help_panel", None)].append((flags, text))
        usual = panels.pop(None)
        with formatter.section("Options"):
            formatter.write_dl(usual)
        if ctx.meta.get(ALL):
            for name, records in panels.items():
                if records:
                    with formatter.section(HINTS.get(str(name), name)):
                        formatter.write_dl(records)
        elif count := sum(map(len, panels.values())):
            formatter.write(f"\n{ctx.command_path} --help-all shows {count} more options\n")


_OF_HELP = ("-h", "--help", "--help-all", "--full", "--no-pager", "--color")
"""What ``grpo help`` itself takes before a name."""

_BEFORE_FLAG, _NO_BREAK = re.compile(r"(?<=\S)\s(?=`?--?[a-z])"), "\xa0"
_BARE = ("--html", "-")
_SHORT = 3
"""Paragraphs of a help without ``--help-all``: the title, the examples, what matters most."""
_ONCE = ("--variant", "--batch", "--at")


class FrontPage(TyperGroup):
    """The command itself: its help is a page that fits a terminal and names every command."""

    def format_usage(self, ctx: Context, formatter: Formatter) -> None:
        """Writes the usage in one line."""
        formatter.write_usage(ctx.command_path, "COMMAND [OPTIONS] [FILE…]")

    def format_help_text(self, ctx: Context, formatter: Formatter) -> None:
        """Writes each question next to its command; above it where the terminal is narrow."""
        page = (self.help or "").split("\b\n")[-1].splitlines()
        if max(map(len, page)) <= formatter.width:
            super().format_help_text(ctx, formatter)
            return
        for line in page:
            *_, question, command = re.split(r"\s{2,}", line.strip())
            formatter.write(f"\n  {question}\n      {command}")
        formatter.write("\n")

    def format_options(self, ctx: Context, formatter: Formatter) -> None:
        """Writes nothing: the page has them."""

    def format_commands(self, ctx: Context, formatter: Formatter) -> None:
        """Writes nothing: the page has them, with what each is for."""
