"""Records that can be read → canonical objects, as lines or columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from grpo_cli.commands.options.source import tell_errors, tell_more_errors
from grpo_cli.engine import Reader
from grpo_cli.errors import InputError
from grpo_cli.records.record import Raw
from grpo_cli.records.tables.canonical import canonical, dumps
from grpo_cli.terminal.escapes import escaped_json
from grpo_cli.terminal.messages import say


class Conversion:
    """The canonical objects of the records that can be read; tells of those that cannot."""

    def __init__(self, reader: Reader, *, as_json: bool) -> None:
        self._reader = reader
        self._as_json = as_json
        self._told = 0
        self._written = 0
        self._last: Raw | None = None

    def write(self, stream: BinaryIO, *, as_table: bool) -> None:
        """Writes them all, as JSONL or as Parquet."""
        try:
            if as_table:
                self._write_table(stream)
            else:
                self._write_lines(stream)
        except InputError as error:
            if error.source is None and self._last is not None:
                error.source, error.line = self._last.source, self._last.line
                error.path = self._last.prefix + error.path
            raise

    def _write_lines(self, stream: BinaryIO) -> None:
        for raws, _ in self._reader.objects():
            for one in self._canonical(raws):
                stream.write(escaped_json(dumps(one)) + b"\n")
        self._tell_skipped()

    def _write_table(self, stream: BinaryIO) -> None:
        from grpo_cli.records.tables.parquet import Table

        with Table(stream) as table:
            for raws, packed in self._reader.objects():
                objects = list(self._canonical(raws))
                if packed is not None and table.add_packed(objects, packed):
                    continue
                for self._last, one in zip(raws, objects, strict=True):
                    table.add(one)
            self._tell_skipped()

    def _canonical(self, raws: list[Raw]) -> Iterator[dict[str, Any]]:
        for raw in raws:
            self._last = raw
            self._tell_skipped()
            yield canonical(raw, self._written)
            self._written += 1

    def _tell_skipped(self) -> None:
        self._told = tell_errors(self._reader.skipped, self._told, as_json=self._as_json)

    def finish(self) -> int:
        """Says how many were left out; the exit code."""
        skipped = self._reader.skipped
        if not skipped:
            return 0
        tell_more_errors(skipped)
        say(f"skipped {skipped.count} of {skipped.count + self._written} records")
        return InputError.exit_code
