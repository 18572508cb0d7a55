"""One of the processes that ``run.py`` starts: every ``jobs``-th input, one finding a line."""

from __future__ import annotations

import json
import mmap
import os
import resource
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from fuzz import templates
from fuzz.case import Case, made
from fuzz.examine import examine, sandbox
from fuzz.oracle import Finding
from fuzz.product import process_megabytes
from fuzz.shrink import shrunk

ADDRESSES = 6 << 30
"""What a worker may map: beyond it the product gets a MemoryError."""
_ENOUGH = 700
"""Megabytes at which a worker ends, for another to go on."""


def work(seed: int, start: int, end: int, step: int, progress: Path, known: frozenset[str]) -> None:
    """Examines the cases ``start``, ``start + step``, …; ``progress`` says which one it is at."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    share = float(os.environ.get("FUZZ_PROCESSES", "0.002"))
    templates.names()
    seen: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    done = 0
    with progress.open("r+b") as file, mmap.mmap(file.fileno(), 8) as place, sandbox() as folder:
        for number in range(start, end, step):
            place[:] = number.to_bytes(8, "little")
            case = made(seed, number)
            for finding in examine(case, folder, number, processes=share, codes=codes):
                seen[finding.kind] += 1
                first = seen[finding.kind] == 1 and finding.kind not in known
                small = shrunk(case, finding.kind, folder, number) if first else None
                _tell(number, finding, small)
            done += 1
            if process_megabytes() > _ENOUGH:
                break
        place[:] = (number + step).to_bytes(8, "little") if done else place[:]
    print(json.dumps({"done": done, "codes": codes}), flush=True)


def _tell(number: int, finding: Finding, small: Case | None) -> None:
    row = {"number": number, **asdict(finding)}
    if small is not None:
        row["case"] = small.saved()
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    work(**given | {"progress": Path(given["progress"]), "known": frozenset(given["known"])})
