"""Bytes → records → batches. Whatever leaves this package is float64, finite and consistent."""

from grpo_cli.records.choose.batches import key_of
from grpo_cli.records.choose.membership import BatchFields, MicroBatch
from grpo_cli.records.decode.blocks import raws, read, record, records
from grpo_cli.records.decode.chunks import DecodedChunk
from grpo_cli.records.fast import Packed, gather, headers, lay, pack
from grpo_cli.records.open.blocks import Block, Source, Span, cut, spans
from grpo_cli.records.parse.assemble import assemble, layout
from grpo_cli.records.parse.record import parse
from grpo_cli.records.reading import PLAIN, Piece, Reading
from grpo_cli.records.record import Raw, Record

__all__ = [
    "PLAIN",
    "BatchFields",
    "Block",
    "DecodedChunk",
    "MicroBatch",
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
    "key_of",
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
