"""Bytes → records → batches. Whatever leaves this package is float64, finite and consistent."""

from grpo_cli.records.assemble import assemble, layout
from grpo_cli.records.parse import parse
from grpo_cli.records.record import Record
from grpo_cli.records.stream import Block, cut, read, records

__all__ = ["Block", "Record", "assemble", "cut", "layout", "parse", "read", "records"]
