"""Where the time of ``eval --level batch --jobs 1`` goes, stage by stage, in this process.

Each line is what reading as far as that stage takes, less what the stage before it takes; the best
of several turns. What it takes to start is in none of them.

What helped, in the order of what it brought: lines found in one buffer that is filled again and
again (``find`` of each newline is four times as fast as ``count`` or ``split``, and no page is
new; half of the reading, and all but a tenth of what the process that cuts files for others does);
objects decoded, looked at and packed by the handful of 128 KiB, and none of them kept any longer
(keeping one record of each stretch cost a sixth with long lines); stretches of 4 MiB, not 1 (a
twelfth); a collector and a C library told to leave the lists and the pages alone
(``engine/memory.py``, a tenth); exact sums that take numbers apart by their bits, eight exponents
to a bin (24 numbers: 22 µs → under 1); the clip worked out in place.

What was tried and is not here: larger pieces of text before packing (the Python objects leave the
cache), packing straight into one array, or row by row (no gain), ``array.array`` and
``np.fromiter`` (slower), ``math.fsum`` for the totals (exact too, but three times slower than
adding up integers by exponent). pysimdjson: its ``as_buffer`` flattens long lines 1.7 times faster
than ``orjson.loads`` and ``struct.pack`` (0.22 s against 0.37), but the nesting is lost in it, so
that widths must be asked for and brackets counted; with that all of eval gained 1.2
times on bare lists (0.54 s against 0.64, the parse loop 0.41) and nothing on what trainers write:
tokens, settings or a translation exclude each of TRL's and verl's dumps. It was an extra in 0.2.0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from grpo_cli.engine import memory
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.packing import chunks
from grpo_cli.engine.totals import Totals
from grpo_cli.records import PLAIN, Span
from grpo_cli.variants.plan import plan


def profile(path: Path, turns: int) -> Iterator[tuple[str, float]]:
    """Seconds of each stage."""
    memory.settle()
    with np.errstate(all="ignore"):
        before = 0.0
        for name, work in STAGES.items():
            took = min(_seconds(work, path) for _ in range(turns))
            yield name, max(0.0, took - before)
            before = took


def _seconds(work: Callable[[Path], object], path: Path) -> float:
    start = time.process_time()
    work(path)
    return time.process_time() - start


def _read(path: Path) -> None:
    for piece in PLAIN.pieces(str(path)):
        if isinstance(piece, Span):
            piece.fetch()


def _decoded(path: Path) -> Iterator:
    for piece in PLAIN.pieces(str(path)):
        yield from PLAIN.decoded(piece, {})


def _decode(path: Path) -> None:
    for _ in _decoded(path):
        pass


def _chunks(path: Path) -> Iterator[Chunk]:
    return (one for one in chunks(_decoded(path), with_headers=False) if isinstance(one, Chunk))


def _pack(path: Path) -> None:
    for _ in _chunks(path):
        pass


def _evaluate(path: Path) -> None:
    evaluator = Evaluator(plan("grpo"))
    for chunk in _chunks(path):
        evaluator.evaluate(chunk)


def _total(path: Path) -> None:
    evaluator, totals = Evaluator(plan("grpo")), Totals("input")
    for chunk in _chunks(path):
        totals.add(evaluator.evaluate(chunk))


STAGES: dict[str, Callable[[Path], object]] = {
    "reading": _read,
    "decoding, or columns": _decode,
    "packing": _pack,
    "the six stages": _evaluate,
    "totals": _total,
}
