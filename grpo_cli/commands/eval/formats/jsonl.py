"""The ``jsonl`` format: one object a line, which is a record, a response or a token."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, BinaryIO

import orjson

from grpo_cli.commands.eval.format import Format, Printing, no_head, write_lines
from grpo_cli.commands.eval.lines import Lines, encode_lines
from grpo_cli.commands.eval.nested import encode_nested
from grpo_cli.commands.eval.run import Run
from grpo_cli.engine.evaluation import Encode
from grpo_cli.terminal.numbers import escaped_json


def _cell(value: Any) -> str:
    return escaped_json(orjson.dumps(value)).decode()


def _line(cells: Sequence[str], names: Sequence[str]) -> str:
    pairs = zip(names, cells, strict=True)
    return "{" + ",".join([f'"{name}":{cell}' for name, cell in pairs]) + "}"


LINES = Lines(_cell, _line, infinite=False)


def _encode(printing: Printing) -> Encode:
    if printing.nested:
        return partial(
            encode_nested,
            level=printing.level,
            fields=printing.fields,
            lines=True,
            weighs=printing.weighs,
        )
    return partial(encode_lines, level=printing.level, fields=printing.names, lines=LINES)


def _write(run: Run, printing: Printing, variant: str, stream: BinaryIO) -> None:
    write_lines(run, printing, variant, stream, LINES, no_head)


FORMAT = Format(_encode, _write)
