"""A bundle: one file of records that ``grpo verify`` replays stage by stage.

It is JSONL. Each line is a plain record with one more key, ``bundle``, so that every command, and
any tool that reads JSON lines, takes the file as it is: no header line that is no record, no
archive to unpack, no second path. A line says by itself what it is, so a bundle streams, is written
while a training runs, may be cut with ``--where`` and is checked by several processes.

``bundle`` holds, of these what is known:

- ``format``: ``grpo-bundle/1``;
- ``variant``, ``signature``: what the loss was evaluated as, and every value that changes it;
- ``tolerances``: ``rtol``, ``atol``, ``metrics_rtol`` of the replay;
- ``generation``, ``rows``, ``generation_size``: which batch of responses the record's responses are
  of, [G] their places in it, and how many it has: advantages need them all;
- ``micro_batches``: how many micro-batches each rank has in the record's step;
- ``previous``, ``sha256``: the hashes of the line before and of this one: of its content, not of
  its spelling. The last is the hash of the whole file;
- ``records``: how many there are, in the last line; ``open`` in all of a recording, which has no
  last line while the training runs.

The record holds the rest under its usual keys: ``rewards/NAME`` (raw), ``rewards`` (shaped),
``advantages``, log-probs, ``step``, ``rank``, ``microbatch``, ``hyperparameters``, ``framework``;
``expected`` has what the trainer computed, with ``step_loss`` and ``step_metrics`` of the step.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import orjson

KEY = "bundle"
FORMAT = "grpo-bundle/1"
Seal = Mapping[str, Any]


def digest(record: Mapping[str, Any]) -> str:
    """The hash of a record's content without ``bundle``, however it is spelled."""
    return _hash({name: value for name, value in record.items() if name != KEY})


def _hash(value: Mapping[str, Any]) -> str:
    try:
        data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # an integer beyond 64 bits, half a character, or deep nesting
        data = json.dumps(value, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()


def seal(content: str, about: Mapping[str, Any], previous: str) -> dict[str, Any]:
    """The value of ``bundle``.

    Args:
        content: the record's digest.
        about: what else ``bundle`` says.
        previous: the hash of the line before; "" for the first.
    """
    found = {"format": FORMAT, **about, "previous": previous}
    return found | {"sha256": _hash({**found, "content": content})}


def seal_of(record: Any) -> Seal | None:
    """What a decoded record says of its bundle; None where it is of none."""
    found = record.get(KEY) if isinstance(record, dict) else None
    return found if isinstance(found, dict) and "format" in found else None


def fault(record: Mapping[str, Any], found: Seal) -> str | None:
    """Why a record is not what its bundle says; None where it is."""
    if found["format"] != FORMAT:
        return f"this grpo reads {FORMAT}, not {found['format']!r}: another version wrote the file"
    about = {name: value for name, value in found.items() if name not in ("format", "sha256")}
    try:
        fits = seal(digest(record), about, str(found.get("previous"))) == found
    except (RecursionError, TypeError, ValueError):
        fits = False
    return None if fits else "the record was changed: it does not match the hash of its bundle"


class Chain:
    """The lines of bundles, in order: does each follow the one before?"""

    def __init__(self) -> None:
        self.last: Seal | None = None
        self.first = ""
        self.count = 0

    def add(self, found: Seal) -> str | None:
        """Adds a line; returns why it does not follow, or None.

        Bundles may follow each other in a file.
        """
        before, own = self.last, str(found["sha256"])
        ended = before is None or "records" in before or "open" in before
        if ended and not found["previous"] and own != self.first:
            self.first, self.count, before = own, 0, None
        if (before["sha256"] if before else "") != found["previous"]:
            return "the record before this one is not in the file: lines were left out or moved"
        self.last, self.count = found, self.count + 1
        return None

    def end(self) -> str | None:
        """Why the last line is not the end of a bundle, or None."""
        if self.last is None or "open" in self.last or "records" in self.last:
            return None
        return f"the bundle is cut off after record {self.count}: its last line is missing"
