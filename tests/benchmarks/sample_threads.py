"""Writes ``samples/threads/runs``: a small run for each thread about runs.

    python tests/benchmarks/sample_threads.py

Nothing is taken from the threads but what they describe; the numbers are simulated. The dumps
beside them were made so too, by the experiments of commit 243cb0cb.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from running.threads import THREADS

SAMPLES = Path(__file__).parents[2] / "samples" / "threads" / "runs"
SEED = 7


def main() -> None:
    SAMPLES.mkdir(exist_ok=True)
    for run in THREADS:
        data = run.made(np.random.default_rng(SEED))
        packed = gzip.compress(data, 9, mtime=0) if run.file.endswith(".gz") else data
        (SAMPLES / run.file).write_bytes(packed)


if __name__ == "__main__":
    main()
