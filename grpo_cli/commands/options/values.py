"""The values of flags, parsed."""

from __future__ import annotations

import math
import re

import typer

from grpo_cli.errors import UsageError

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def number(text: str) -> float:
    """A finite number. Python's own ``float`` would also take ``nan``, ``inf`` and ``1_0``."""
    if _NUMBER.fullmatch(text) and math.isfinite(value := float(text)):
        return value
    raise typer.BadParameter(f"expected a finite number, got {text!r}")


def tolerance(text: str) -> float:
    """A finite number that is not negative."""
    if (value := number(text)) >= 0:
        return value
    raise typer.BadParameter(f"expected a number >= 0, got {text!r}")


def assignment(text: str) -> tuple[str, object]:
    """``NAME=VALUE``, whose value is a number, ``null`` or a word."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not (name and equals and value):
        raise UsageError(f"--param: expected NAME=VALUE, got {text!r}")
    if value == "null":
        return name, None
    if not _NUMBER.fullmatch(value):
        return name, value
    found = float(value)
    if not math.isfinite(found):
        raise UsageError(f"--param: {name}: expected a finite number, got {value}")
    return name, int(value) if re.fullmatch(r"[+-]?\d+", value) else found
