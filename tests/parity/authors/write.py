"""Writes tests/golden/authors.json.

``cd tests && python -m parity.authors.write OWNER/NAME=CLONE...`` with a git clone, which may be
bare, of each repository of ``framework_sources.AUTHORS``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..batches import Ragged, ragged
from ..framework_sources import AUTHORS, Clones, in_float64
from ..others.inputs import SIZE, Case, Inputs
from ..others.write import described, evaluated, rows_of
from .advantages import filtered, first_step, signed
from .losses import bapo, ce_gppo, dcpo, minirl

GOLDEN = Path(__file__).parent.parent.parent / "golden" / "authors.json"


def _spread() -> Ragged:
    """Log ratios three times the usual: what moves BAPO's bounds."""
    batch = ragged(12, "usual")
    new, old = batch.columns["log_probs_new"], batch.columns["log_probs_old"]
    far = [np.minimum(n - 3.0 * (n - o), -1e-3) for n, o in zip(new, old, strict=True)]
    return replace(batch, columns=batch.columns | {"log_probs_old": far})


BATCHES = {kind: ragged(11, kind) for kind in ("usual", "near", "extreme", "hollow")}
BATCHES["spread"] = _spread()


def _verdicts() -> Ragged:
    """Rewards 1 and 0; every token counts, as the authors' code wants it."""
    batch = ragged(11, "usual", group_size=SIZE).unmasked()
    ones = (np.arange(batch.count) * 7 % 5 < 2).astype(np.float64)
    filled = [row if len(row) else np.ones(1, np.int64) for row in batch.mask]
    assert all(len(row) for row in batch.mask), "no response is empty"
    return replace(batch, rewards=ones, mask=filled)


def _untied() -> Ragged:
    """Groups whose responses all have lengths and rewards per token of their own."""
    for seed in range(1000):
        batch = ragged(seed, "usual", group_size=SIZE).unmasked()
        lengths = np.array([len(row) for row in batch.mask])
        rows = lengths.reshape(-1, SIZE)
        scores = (batch.rewards / np.maximum(lengths, 1)).reshape(-1, SIZE)
        if lengths.all() and all(len({*row}) == SIZE for row in [*rows.tolist(), *scores.tolist()]):
            return batch
    raise AssertionError("no such batch")


GRADED = {"verdicts": _verdicts(), "untied": _untied()}
"""For advantages; what tells 1 and 0 apart wants the first, a filter the second."""


def losses(clones: Clones) -> Iterator[tuple[Case, str, Ragged]]:
    """Every loss on every batch where log ratios are in the code's own bounds."""
    for made in (ce_gppo, dcpo, bapo, minirl):
        for case in made(clones):
            for kind, batch in BATCHES.items():
                if not (made is minirl and kind == "extreme"):  # its weights are capped at e^20
                    yield case, kind, batch


def golden(clones: Clones) -> dict[str, Any]:
    """The whole document."""
    cases = [
        {**described(case), "batch": kind, **evaluated(batch, case[-1])}
        for case, kind, batch in losses(clones)
    ]
    advantages = [
        {**described(case), "batch": kind, "advantages": rows_of(batch, case[-1](Inputs(batch)))}
        for made, kind in ((signed, "verdicts"), (first_step, "verdicts"), (filtered, "untied"))
        for case in made(clones)
        for batch in (GRADED[kind],)
    ]
    return {
        "provenance": "tests/parity/authors: the functions that go with the papers, executed in "
        f"float64 with torch {torch.__version__}",
        "commits": AUTHORS,
        "reduced": "MiniRL's sum over tokens is written out there, and its weight not capped",
        "batches": {
            **{kind: batch.record() for kind, batch in BATCHES.items()},
            **{kind: batch.record(rewards=True) for kind, batch in GRADED.items()},
        },
        "cases": cases,
        "advantages": advantages,
    }


if __name__ == "__main__":
    in_float64()
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    document = golden(Clones({name: Path(path) for name, path in given.items()}))
    text = json.dumps(document, separators=(",", ":")).replace("},{", "},\n{")
    GOLDEN.write_text(text + "\n")
