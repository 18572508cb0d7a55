"""Writes ``samples/threads``: a small dump or run for each thread that answers must be right on.

    python tests/benchmarks/sample_threads.py

Nothing is taken from the threads but what they describe; the numbers are simulated (``trials``).
Log-probs keep five digits, and responses are cut where only their rewards matter.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
from running import threads as runs
from trials.faults.samples import THREADS
from trials.product import Record, lines
from trials.turns import threads as turns

SAMPLES = Path(__file__).parents[2] / "samples" / "threads"
SEED = 7
JUDGED = ("NeMo-RL#1518", "AReaL#1419")
"""Threads about advantages: eight tokens of each response are enough."""
ROWS = 8
"""Of the others, so many responses."""
UNUSED = ("entropies", "response_ids", "completion_ids")


def short(value: Any) -> Any:
    if isinstance(value, list):
        return [short(part) for part in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def smaller(record: Record, name: str) -> Record:
    """A record with what its thread is about."""
    kept = {key: value for key, value in record.items() if key not in UNUSED}
    if name in ("trl#5224", "trl#6121"):
        kept = dict(record)
    if name in JUDGED:
        kept = {key: _cut(value) for key, value in kept.items()}
    else:
        rows = len(record["rewards"])
        kept = {key: value[:ROWS] if _of(value, rows) else value for key, value in kept.items()}
    return {**kept, "id": name}


def _of(value: Any, rows: int) -> bool:
    return isinstance(value, list) and len(value) == rows


def _cut(value: Any) -> Any:
    nested = isinstance(value, list) and value and isinstance(value[0], list)
    return [row[:8] for row in value] if nested else value


def named(thread: str) -> str:
    """The name of a thread's file."""
    return re.sub("[^a-z0-9]+", "-", thread.lower())


def short_log_probs(record: Record) -> Record:
    return {key: short(one) if "log_probs" in key else one for key, one in record.items()}


def main() -> None:
    SAMPLES.mkdir(exist_ok=True)
    for thread in THREADS:
        made = thread.made(np.random.default_rng(SEED))
        exact = thread.command == "verify"
        records = [one if exact else short(smaller(one, thread.name)) for one in made]
        (SAMPLES / f"{named(thread.name)}.jsonl").write_bytes(lines(records))
    (SAMPLES / "turns").mkdir(exist_ok=True)
    for one in turns.THREADS:
        exact = one.command == "verify"
        made = [row | {"id": one.name} for row in one.made(np.random.default_rng(SEED))]
        path = SAMPLES / "turns" / f"{named(one.name)}.jsonl"
        path.write_bytes(lines(made if exact else map(short_log_probs, made)))
    (SAMPLES / "runs").mkdir(exist_ok=True)
    for run in runs.THREADS:
        data = run.made(np.random.default_rng(SEED))
        packed = gzip.compress(data, 9, mtime=0) if run.file.endswith(".gz") else data
        (SAMPLES / "runs" / run.file).write_bytes(packed)


if __name__ == "__main__":
    main()
