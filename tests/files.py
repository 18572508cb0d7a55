"""Files read and evaluated as the commands do it."""

from __future__ import annotations

import csv
import inspect
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import unified_diff
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import pytest

from grpo_cli.batch import Batch
from grpo_cli.engine import Evaluation, Reader
from grpo_cli.errors import InputError
from grpo_cli.records import (
    PLAIN,
    Block,
    Raw,
    Reading,
    Record,
    Source,
    cut,
    lay,
    pack,
    record,
    spans,
)
from grpo_cli.records.open import blocks
from grpo_cli.variants.plan import Plan

T = TypeVar("T")


def gather(objects: Sequence[dict[str, Any]]) -> Batch | None:
    """The batch of records that have the same keys, packed at once; None if one is not plain."""
    packed = pack(objects)
    return None if packed is None else lay([packed])


MORE = not {"GRPO_MORE", "GRPO_WRITE_CASES"}.isdisjoint(os.environ)
"""Whether everything is tried, as ``.ci/run`` does, or every snapshot is written anew."""


def some(every: Sequence[T], count: int) -> Sequence[T]:
    """So many of them, from first to last; all where everything is tried."""
    return every if MORE else every[:: -(-len(every) // count)]


def each(
    names: str | Sequence[str], cases: Iterable[Any], ids: Callable[[Any], object] = repr
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """``pytest.mark.parametrize`` in one test, for cases that cost less than a test of their own.

    All are tried, with the same fixtures; those that fail are named, a line each.
    """
    names, cases = [names] if isinstance(names, str) else names, list(cases)
    assert cases

    def over_all(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def tried(*this: Any, **fixtures: Any) -> None:
            __tracebackhide__ = True
            failed: list[BaseException] = []
            for case in cases:
                given = dict(zip(names, [case] if len(names) == 1 else case, strict=True))
                try:
                    test(*this, **fixtures, **given)
                except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
                    error.add_note(f"the case {ids(case)}")
                    failed.append(error)
            if failed:
                named = "\n".join(f"{', '.join(error.__notes__)}: {error}" for error in failed)
                raise AssertionError(f"{len(failed)} of {len(cases)}\n{named}") from failed[0]

        asked = inspect.signature(test)
        rest = [value for name, value in asked.parameters.items() if name not in names]
        tried.__signature__ = asked.replace(parameters=rest)
        return tried

    return over_all


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file: column → cell."""
    with path.open(encoding="utf-8", newline="") as stream:
        return [*csv.DictReader(stream)]


def expressions(path: Path, names: dict[str, Any], *, by_hand: bool = False) -> None:
    """Asserts that each expression of a file (``%``) has the value that is below it (``>``).

    Texts are there line by line, with a mark where a line ends with a space. Lines with ``!`` are
    run together: they name what expressions below them use. ``GRPO_WRITE_CASES=1`` writes the
    values anew, but not those that somebody worked out by hand.
    """
    now, kept = list[str](), path.read_text(encoding="utf-8").splitlines()
    statements = list[str]()
    for line in (one for one in kept if not one.startswith(">")):
        now.append(line)
        if line.startswith("! "):
            statements.append(line[2:])
            continue
        exec("\n".join(statements), names)
        statements.clear()
        if line.startswith("% "):
            value = eval(line[2:], names)
            value = value if isinstance(value, list | str) else repr(value)
            texts = [value] if isinstance(value, str) else value
            lines = [one for text in texts for one in str(text).split("\n")]
            now += [f"> {one}|" if one.endswith(" ") else f"> {one}".rstrip() for one in lines]
    if "GRPO_WRITE_CASES" in os.environ and not by_hand:
        path.write_text("".join(f"{line}\n" for line in now), encoding="utf-8")
    assert now == kept, "\n".join(unified_diff(kept, now, path.name, "now", n=1, lineterm=""))


def evaluation(
    path: object,
    plan: Plan,
    *,
    encode: Callable[..., list[bytes]] | None = None,
    reading: Reading = PLAIN,
    **options: Any,
) -> Evaluation:
    """The evaluation of one file; ``options`` are the reader's."""
    return Evaluation(Reader([str(path)], reading, **options), plan, encode=encode)


def in_blocks(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Has files read in blocks of so many bytes."""
    monkeypatch.setitem(Reader.__init__.__kwdefaults__ or {}, "block_bytes", size)


@contextmanager
def blocks_of(size: int) -> Iterator[None]:
    """Has files read in blocks of so many bytes for a while."""
    with pytest.MonkeyPatch.context() as patch:
        in_blocks(patch, size)
        yield


def numbered_lines(path: object, size: int, way: str = "blocks") -> tuple[list[Any], str | None]:
    """The lines of a file with their numbers, and the message where they end with an error.

    Args:
        path: the file.
        size: bytes of a piece.
        way: blocks; spans, which worker processes fetch; or ranges, which a cluster reads.
    """
    found: list[Any] = []
    source, before = Source.of(str(path)), 0
    try:
        if way == "ranges":
            for wanted in blocks.ranges(source, size):
                for block in blocks.blocks_of(wanted, before):
                    found += enumerate(block.lines, block.line)
                before += blocks.look(wanted)[0]
            return found, None
        for piece in spans(source, size) if way == "spans" else cut(source, size):
            block = piece if isinstance(piece, Block) else piece.fetch()
            found += enumerate(block.lines, block.line)
    except InputError as error:
        return found, str(error)
    return found, None


def grouped_rows(path: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """Rows of one response each, five of a prompt, written as JSONL."""
    draw = random.Random(seed)
    rows = [
        {"uid": number // 5, "log_probs_new": [-draw.random()], "reward": draw.random()}
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def raws(path: object, notices: dict[str, None], **options: Any) -> Iterator[Any]:
    """The objects of a file, errors in the place of those that cannot be read."""
    reading = Reading(**options)
    read = False
    for piece in reading.pieces(str(path)):
        for raw in reading.raws(piece, notices):
            read = True
            yield raw
    if not read and reading.selects:
        raise reading.nothing(())


def records(path: object, notices: dict[str, None], **options: Any) -> list[Any]:
    """The same as records."""
    found = raws(path, notices, **options)
    return [record(one) if isinstance(one, Raw) else one for one in found]


def beside(raws: Iterator[Raw]) -> Iterator[tuple[Raw, Record]]:
    """Objects beside their records, as ``Reader.records`` gives them."""
    for raw in raws:
        read = record(raw)
        if not isinstance(read, Record):
            raise read
        yield raw, read
