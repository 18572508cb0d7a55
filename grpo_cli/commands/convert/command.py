"""``grpo convert``: any input that can be read → canonical JSONL, a bundle or Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, ClassVar, Literal, NamedTuple

import orjson

from grpo_cli.bundle import KEY, digest, seal, seal_of
from grpo_cli.commands.options.option import option
from grpo_cli.commands.options.output import Json, Output, Quiet
from grpo_cli.commands.options.place import (
    Resume,
    check_parts,
    destination,
    part_folder,
    print_written,
    to_folder,
)
from grpo_cli.commands.options.source import (
    Files,
    ReadingOptions,
    RecordOption,
    paths,
    print_errors,
    print_notes,
    print_skipped,
)
from grpo_cli.commands.verify.compare import LOGGED
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.fold import Accumulator, fold_pieces
from grpo_cli.engine.packing import alike
from grpo_cli.errors import GrpoError, InputError, UsageError
from grpo_cli.records import DecodedChunk, Raw, assemble, record
from grpo_cli.records.record import blaming
from grpo_cli.records.tables.writing import Table, canonical, dumps, has_id, named
from grpo_cli.terminal.destination import standard_output
from grpo_cli.terminal.numbers import escaped_json
from grpo_cli.variants.trainer import Reading, choose, completed

if TYPE_CHECKING:
    from grpo_cli.engine.cluster.parts import PartFolder

To = Annotated[
    Literal["jsonl", "parquet"] | None,
    option("--to", "FORMAT", "jsonl or parquet; default: by the name of --output."),
]

Bundle = Annotated[
    bool,
    option("--bundle", "", "Write a bundle: settings, tolerances and a hash, for grpo verify."),
]


def convert(
    *,
    files: Files = None,
    reading: ReadingOptions,
    chosen: RecordOption,
    to: To = None,
    bundle: Bundle = False,
    output: Output = None,
    resume: Resume = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Convert any input to canonical JSONL or Parquet.

    \b
    grpo convert train_data_step7.jsonl --group-size 16 -o step7.jsonl
    grpo convert rollouts.jsonl -o rollouts.parquet
    grpo convert rollouts.jsonl --bundle -o step.bundle.jsonl

    The result evaluates to the same numbers, bit for bit. A bundle is the file
    to send with a bug report: `grpo verify` replays it and names the first stage
    that differs (`grpo help recording`). For rows as CSV, use
    `grpo eval FILE --level token -f csv`. --json prints errors as JSON.
    """  # noqa: D301 - \b is for the help's formatter
    results = standard_output()
    if output is None and results is not None and results.isatty():
        raise UsageError("use -o FILE to save the result, or | to pipe it")
    kind = to or _kind_of(output)
    if bundle and (kind == "parquet" or reading.on is not None):
        raise UsageError("--bundle writes JSONL on this machine: leave out --on and Parquet")
    if kind == "parquet" and reading.on is None:  # where it is cut would change its bytes
        if reading.jobs not in (None, 1):
            raise UsageError(f"--jobs {reading.jobs}: one process writes a Parquet file")
        reading = replace(reading, jobs=1)
    reader = reading.reader(paths(files), chosen.record)
    run = Conversion(reader, as_table=kind == "parquet", as_json=json, as_bundle=bundle)
    if check_parts(output, reader, resume=resume):
        about = {"convert": kind}
        with part_folder(str(output), kind, PACKS[kind], reader, about, resume=resume) as folder:
            for _ in run.pieces(folder):
                pass
    elif kind == "parquet" and reading.on is not None:
        raise UsageError("--on writes Parquet in parts: -o FOLDER/")
    else:
        with destination(output) as stream:
            run.write(stream)
        print_written(output, quiet=quiet)
    print_notes(reader.notices | run.notices(), quiet=quiet)
    return run.finish()


def _kind_of(output: str | None) -> str:
    """The format that the name of a file asks for; JSONL where it has no ending.

    Raises:
        UsageError: for the ending of another format.
    """
    ending = Path(output or "").suffix
    if ending not in ("", ".jsonl", ".ndjson", ".json", ".parquet") and not to_folder(output):
        name = "the name must end in .jsonl or .parquet, or write JSONL under any name"
        raise UsageError(f"-o {output}: {name} with --to jsonl")
    return "parquet" if ending == ".parquet" else "jsonl"


# ---- bundles ------------------------------------------------------------------------------------


TOLERANCES = {"rtol": LOGGED, "metrics_rtol": LOGGED}
"""Of a bundle that names none."""

_OF_FILE = ("format", "previous", "sha256", "records", "open")
"""What a line says of its place in a bundle."""


class Unsealed(NamedTuple):
    """A line that does not know the one before it yet.

    Attributes:
        line: the record without ``bundle``.
        content: its digest.
        about: what ``bundle`` says of it.
    """

    line: bytes
    content: str
    about: Mapping[str, Any]


def bundle_line(raw: Raw) -> Unsealed:
    """A record as a line of a bundle, in any process.

    Raises:
        InputError: where the record's settings cannot be used, or JSON cannot hold it.
    """
    value = canonical(raw, raw.number)
    before = seal_of(value) or {}
    value = {name: one for name, one in value.items() if name != KEY}
    value = value if has_id(value) else named(value, raw.number)
    kept = {name: one for name, one in before.items() if name not in _OF_FILE}
    about = {"tolerances": TOLERANCES} | kept | _settings(raw)
    return Unsealed(escaped_json(dumps(value)), digest(value), about)


def _settings(raw: Raw) -> dict[str, str]:
    """The variant that a record is evaluated as, and its signature."""
    read = record(raw)
    if isinstance(read, InputError):
        raise read
    settings = raw.value.get("framework")
    given = read.advantages is not None
    try:
        chosen = choose(settings) if isinstance(settings, dict) else Reading("grpo")
        plan = completed(chosen, advantages_given=given, stages={}, hyperparameters={})
        objective = Chunk.of([read]).objective(plan)
    except GrpoError:  # whoever verifies it names a variant
        return {}
    return {"variant": objective.name, "signature": objective.signature}


def write_bundle(lines: Iterable[Unsealed], stream: BinaryIO) -> None:
    """Writes a bundle: each line with the hash of the one before, the last with their number."""
    previous, waiting, count = "", None, 0
    for line in chain(lines, [None]):
        if waiting is not None:
            about = waiting.about if line is not None else {**waiting.about, "records": count}
            found = seal(waiting.content, about, previous)
            stream.write(b'%b,"%b":%b}\n' % (waiting.line[:-1], KEY.encode(), orjson.dumps(found)))
            previous = found["sha256"]
        waiting, count = line, count + 1


# ---- lines and columns ---------------------------------------------------------------------------


class Unnamed(NamedTuple):
    """A line whose record has no id, and is given one where it is not written in its own place.

    Attributes:
        number: the 0-based place in which it needs none.
        line: what it is there.
    """

    number: int
    line: bytes


@dataclass
class Converted(Accumulator[None]):
    """Records as lines, or as they were decoded, in order.

    Attributes:
        as_table: whether they become columns; lines otherwise.
        as_bundle: whether the lines are a bundle's.
        pieces: the lines, or the records.
        records, expecting: how many, and how many of them have numbers that verify compares.
    """

    as_table: bool
    as_bundle: bool = False
    pieces: list[Any] = field(default_factory=list)
    records: int = 0
    expecting: int = 0

    settings: ClassVar[tuple[str, ...]] = ("as_table", "as_bundle")

    def read(self, decoded: Iterable[DecodedChunk]) -> Iterator[InputError]:
        """Converts records in order, and yields the errors of those that cannot be read."""
        for found in _objects(decoded):
            if isinstance(found, InputError):
                yield found
                continue
            try:
                self.pieces += found if self.as_table else map(self._piece, found)
            except InputError as error:  # what JSON cannot hold is never left out
                self.error = error
                self.records = len(self.pieces)
                return
            self.records += len(found)

    def _piece(self, raw: Raw) -> bytes | Unnamed | Unsealed:
        with blaming(raw):
            self.expecting += bool(raw.plain().get("expected"))
            return bundle_line(raw) if self.as_bundle else _line(raw)

    def merge(self, later: Converted) -> None:
        """Adds the records that follow."""
        self.pieces += later.pieces
        self.records += later.records
        self.expecting += later.expecting


def _objects(decoded: Iterable[DecodedChunk]) -> Iterator[Sequence[Raw] | InputError]:
    """Objects that are records, many that are alike together; errors."""
    for chunk in decoded:
        for items, packed in alike(chunk):
            if packed is not None:
                yield items  # type: ignore[misc]  # none of them is an error
                continue
            for raw in items:
                error = raw if isinstance(raw, InputError) else _fault(raw)
                yield [raw] if error is None else error  # type: ignore[list-item]


def _fault(raw: Raw) -> InputError | None:
    """The error that evaluating the record would raise; None for a good one."""
    found = record(raw)
    if isinstance(found, InputError):
        return found
    try:
        with blaming(raw):
            assemble([found])
    except InputError as error:
        return error
    return None


def _line(raw: Raw) -> bytes | Unnamed:
    value = canonical(raw, raw.number)
    line = escaped_json(dumps(value)) + b"\n"
    return line if has_id(value) else Unnamed(raw.number, line)


def write_lines(pieces: Iterable[bytes | Unnamed], stream: BinaryIO) -> None:
    """Writes the lines of a file."""
    for at, piece in enumerate(pieces):
        if isinstance(piece, bytes):
            stream.write(piece)
        elif piece.number == at:
            stream.write(piece.line)
        else:
            value = named(json.loads(piece.line), piece.number)
            stream.write(escaped_json(dumps(value)) + b"\n")


def write_table(raws: Iterable[Any], stream: BinaryIO) -> None:
    """Writes records as a Parquet file."""
    with Table(stream) as table:
        for place, raw in enumerate(raws):
            with blaming(raw):
                table.add_record(canonical(raw, place))


PACKS = {"jsonl": write_lines, "parquet": write_table}
"""Format → what writes a part of it."""


class Conversion:
    """The canonical objects of the records that can be read; prints errors for the others.

    Args:
        reader: the files.
        as_table: whether they become columns; lines otherwise.
        as_json: whether errors are JSON.
        as_bundle: whether the lines are a bundle's.
    """

    def __init__(
        self, reader: Reader, *, as_table: bool, as_json: bool, as_bundle: bool = False
    ) -> None:
        self._reader = reader
        self._make = partial(Converted, as_table, as_bundle)
        self._as_json = as_json
        self._reported = 0
        self._whole = self._make()

    def write(self, stream: BinaryIO) -> None:
        """Writes them all, as JSONL, as a bundle or as Parquet."""
        pieces = chain.from_iterable(self.pieces())
        if self._whole.as_bundle:
            write_bundle(pieces, stream)
        elif self._whole.as_table:
            write_table(pieces, stream)
        else:
            write_lines(pieces, stream)

    def pieces(self, part_folder: PartFolder | None = None) -> Iterator[list[Any]]:
        """Yields the lines or records, where the workers of a cluster do not write them."""
        for whole in fold_pieces(self._reader, self._make, part_folder=part_folder):
            self._whole = whole
            pieces, whole.pieces = whole.pieces, []
            self._reported = print_errors(
                self._reader.skipped, self._reported, as_json=self._as_json
            )
            yield pieces

    def notices(self) -> dict[str, None]:
        """What there is to say of a bundle that nothing can be verified of."""
        if not self._whole.as_bundle or self._whole.expecting:
            return {}
        why = 'no record has "expected", so grpo verify has no loss of yours to compare'
        return {f"{why}: put it there first, or pass a logged loss to grpo match": None}

    @property
    def records(self) -> int:
        """How many were written."""
        return self._whole.records

    def finish(self) -> int:
        """Says how many were left out; the exit code."""
        skipped = self._reader.skipped
        if not skipped:
            return 0
        print_skipped(skipped, skipped.count + self._whole.records)
        return InputError.exit_code
