"""Bytes → records → batches. Whatever leaves this package is float64, finite and consistent."""

from grpo_cli.records.assemble import assemble, layout
from grpo_cli.records.gather import Packed, gather, headers, lay, pack
from grpo_cli.records.handful import Handful
from grpo_cli.records.parse import parse
from grpo_cli.records.reading import PLAIN, Piece, Reading
from grpo_cli.records.record import Raw, Record
from grpo_cli.records.stream import (
    Block,
    Source,
    Span,
    cut,
    raws,
    read,
    record,
    records,
    spans,
)

__all__ = [
    "PLAIN",
    "Block",
    "Handful",
    "Packed",
    "Piece",
    "Raw",
    "Reading",
    "Record",
    "Source",
    "Span",
    "assemble",
    "cut",
    "gather",
    "headers",
    "lay",
    "layout",
    "pack",
    "parse",
    "raws",
    "read",
    "record",
    "records",
    "spans",
]
