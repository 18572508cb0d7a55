"""The ``csv`` format: a header, then one line a row, numbers as JSON has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np
import orjson

from grpo_cli.commands.eval.format import Printing, lines_format, write_lines
from grpo_cli.commands.eval.lines import Lines
from grpo_cli.commands.eval.run import Run
from grpo_cli.terminal.numbers import escaped


def _cell(value: Any) -> str:
    """Nothing for null, and ``inf``, which JSON cannot say."""
    if value is None:
        return ""
    if value in (np.inf, -np.inf):
        return repr(value)
    text = escaped(value if isinstance(value, str) else orjson.dumps(value).decode())
    if any(mark in text for mark in ',"\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _line(cells: Sequence[str], _: Sequence[str]) -> str:
    return ",".join(cells)


LINES = Lines(_cell, _line, infinite=True, quoted=True)


def head(names: Sequence[str]) -> bytes:
    """The first line."""
    return ",".join(names).encode() + b"\n"


def _write(run: Run, printing: Printing, variant: str, stream: BinaryIO) -> None:
    write_lines(run, printing, variant, stream, LINES, head)


FORMAT = lines_format(LINES, _write)
