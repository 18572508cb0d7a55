"""The manual page: the same help, as ``man`` reads it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import typer

from grpo_cli.version import VERSION


def manual(application: typer.Typer, topics: Mapping[str, str]) -> str:
    """The page in roff, made from what ``--help`` prints."""
    group: Any = typer.main.get_command(application)
    context = group.make_context("grpo", [], resilient_parsing=True)
    lines = [f'.TH GRPO 1 "" "grpo {VERSION}"', ".SH NAME"]
    lines += [r"grpo \- what a GRPO-family objective is on the data you have, token by token"]
    lines += [".SH SYNOPSIS", ".B grpo", r"\fICOMMAND\fR [\fIOPTIONS\fR] [\fIFILE\fR…]"]
    lines += [".SH DESCRIPTION", *_prose(group.help)]
    for name in group.list_commands(context):
        lines += _command(name, group.get_command(context, name), context)
    lines += [".SH EXIT STATUS"]
    for code, meaning in _CODES.items():
        lines += [".TP", f".B {code}", meaning]
    lines += [".SH SEE ALSO", "The longer pages, printed by grpo help TOPIC:"]
    for name, title in topics.items():
        lines += [".TP", f".B {_escaped(name)}", _escaped(title)]
    return "\n".join(lines) + "\n"


_CODES = {
    "0": "done; yes",
    "1": "the answer is no (verify, check, match, diff, trend)",
    "2": "usage",
    "3": "bad input",
    "70": "a bug of ours",
    "130": "Ctrl-C",
    "141": "closed pipe",
}


def _command(name: str, command: Any, context: Any) -> Iterator[str]:
    inner = command.make_context(name, [], parent=context, resilient_parsing=True)
    usage = " ".join(command.collect_usage_pieces(inner))
    yield f".SH {name.upper()}"
    yield _escaped(f"grpo {name} {usage}")
    yield from _prose(command.help)
    for parameter in command.get_params(inner):
        record = parameter.get_help_record(inner)
        if record is not None:
            yield from (".TP", f".B {_escaped(record[0])}", _escaped(record[1]))


def _prose(text: str) -> Iterator[str]:
    """Paragraphs; those that the help's formatter leaves alone keep their lines."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        yield ".PP"
        if paragraph.startswith("\b"):
            yield ".nf"
            yield from map(_escaped, paragraph[1:].strip("\n").split("\n"))
            yield ".fi"
        else:
            yield _escaped(" ".join(paragraph.split()))


def _escaped(text: str) -> str:
    """Text as roff needs it."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped)
