"""A smaller case with the same fault."""

from __future__ import annotations

import gzip
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from fuzz.case import FILE, Case, smaller
from fuzz.examine import examine

TRIES, SECONDS = 400, 40.0


def shrunk(case: Case, kind: str, folder: Path, seed: object) -> Case:
    """The case without the flags and bytes that its fault does not need."""
    left, ends = [TRIES], time.monotonic() + SECONDS

    def shows(one: Case) -> bool:
        if left[0] <= 0 or time.monotonic() > ends or kind.endswith((": memory", " s")):
            return False
        left[0] -= 1
        return any(found.kind == kind for found in examine(one, folder, seed))

    for make in (_unpacked, _without_words, _named, _without_bytes):
        case = _reduced(case, make, shows)
    return case


Make = Callable[[Case], Iterator[Case]]


def _reduced(case: Case, make: Make, shows: Callable[[Case], bool]) -> Case:
    """The smallest that can be reached by these steps, each tried again after one that worked."""
    while True:
        better = next((one for one in make(case) if shows(one)), None)
        if better is None:
            return case
        case = better


def _unpacked(case: Case) -> Iterator[Case]:
    if case.data[:2] == b"\x1f\x8b":
        try:
            yield replace(smaller(case, gzip.decompress(case.data)), how="damaged")
        except (OSError, EOFError, zlib.error):
            return


def _without_words(case: Case) -> Iterator[Case]:
    for size in (2, 1):
        for at in range(1, len(case.words) - size + 1):
            if FILE not in (taken := case.words[at : at + size]) and "-n" not in taken:
                yield replace(case, words=case.words[:at] + case.words[at + size :])


def _named(case: Case) -> Iterator[Case]:
    if case.how != "table" and case.name != "in.jsonl":
        yield replace(case, name="in.jsonl")


def _without_bytes(case: Case) -> Iterator[Case]:
    lines = case.data.splitlines(keepends=True)
    if len(lines) > 1:
        for at in range(len(lines)):
            yield smaller(case, b"".join(lines[:at] + lines[at + 1 :]))
    size = len(case.data) // 2
    while size >= max(1, len(case.data) // 64):
        for start in range(0, len(case.data), size):
            yield smaller(case, case.data[:start] + case.data[start + size :])
        size //= 2
