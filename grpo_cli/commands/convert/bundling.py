"""Records → the lines of a bundle (``grpo_cli/bundle.py`` says what that is)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, BinaryIO, NamedTuple

import orjson

from grpo_cli.bundle import KEY, digest, seal, seal_of
from grpo_cli.commands.verify.compare import LOGGED
from grpo_cli.engine.chunk import Chunk
from grpo_cli.errors import GrpoError, InputError
from grpo_cli.records import Raw, record
from grpo_cli.records.tables.parquet import canonical, dumps, has_id, named
from grpo_cli.terminal.numbers import escaped_json
from grpo_cli.variants.trainer import Reading, choose, completed

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
