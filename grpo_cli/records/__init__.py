"""Bytes → records → batches. Whatever leaves this package is float64, finite and consistent."""

from grpo_cli.records.choose.grouping import key_of
from grpo_cli.records.from_objects import headers, pack
from grpo_cli.records.objects import decoded
from grpo_cli.records.open.blocks import Block, Source, cut, spans
from grpo_cli.records.packed import Packed, lay
from grpo_cli.records.parse.assemble import assemble, find_faults, layout
from grpo_cli.records.parse.record import parse, record
from grpo_cli.records.reading import PLAIN, Piece, Reading
from grpo_cli.records.record import BatchFields, DecodedChunk, MicroBatch, Raw, Record

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
    "assemble",
    "cut",
    "decoded",
    "find_faults",
    "headers",
    "key_of",
    "lay",
    "layout",
    "pack",
    "parse",
    "record",
    "spans",
]
