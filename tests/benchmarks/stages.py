"""Where the time of ``grpo eval`` goes on the dumps of ``shapes.py``, each stage with those before.

    python tests/benchmarks/stages.py [--megabytes 12] [--turns 12] [--only trl,verl]

All stages are run in turns in one process, which the loop is as well; a cell is the process time
of the best turn, less that of the stage before, as a multiple of the loop's:

- ``decode``: decoding chunks of lines, which are freed when the next one is decoded;
- ``convert``: recognising formats, converting, joining rows to records;
- ``arrays``: turning objects into columns; ``check``: text and ids; ``settings``: reading them;
- ``objective``: laying columns side by side, evaluating them, adding up.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

from shapes import SHAPES, loop, write

from grpo_cli.engine.accumulator import FoldPiece
from grpo_cli.engine.evaluation import EvaluationSums
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.packing import packed_runs
from grpo_cli.records import Reading, from_objects
from grpo_cli.records.choose.grouping import Grouping
from grpo_cli.records.choose.where import read_path
from grpo_cli.records.objects import decoded
from grpo_cli.variants.plan import plan

STAGES = ("decode", "convert", "arrays", "check", "settings", "objective")
_UNCHECKED = {
    "_check_words": lambda *_: None,
    "read_settings": lambda objects, _: [{}] * len(objects),
}


def runs(path: Path, reading: Reading) -> dict[str, Callable[[], Any]]:
    """Stage → what does it and those before it."""
    pieces: Callable[[], Iterator[Any]] = partial(reading.pieces, str(path))
    make = partial(EvaluationSums, Evaluator(plan("grpo")))

    def objects() -> Iterator[Any]:
        return chain.from_iterable(reading.decoded(piece, {}) for piece in pieces())

    def decode() -> None:
        for _ in chain.from_iterable(map(decoded, pieces())):
            pass

    def convert() -> None:
        for _ in objects():
            pass

    def columns() -> None:
        for _ in chain.from_iterable(map(packed_runs, objects())):
            pass

    def without(*names: str) -> Callable[[], None]:
        def run() -> None:
            with ExitStack() as stack:
                for name in names:
                    stack.enter_context(patch.object(from_objects, name, _UNCHECKED[name]))
                columns()

        return run

    def objective() -> None:
        FoldPiece(make, reading, skip=False, most_errors=1)(pieces())

    bare, checked = without(*_UNCHECKED), without("read_settings")
    each = (decode, convert, bare, checked, columns, objective)
    return dict(zip(STAGES, each, strict=True))


def spent(run: Callable[[], Any]) -> float:
    """Process time, without the collector of cycles, which ``grpo`` starts late."""
    gc.collect()
    gc.disable()
    start = time.process_time()
    run()
    took = time.process_time() - start
    gc.enable()
    return took


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=12.0)
    parser.add_argument("--turns", type=int, default=12)
    lines = [name for name, shape in SHAPES.items() if shape.suffix == ".jsonl"]
    parser.add_argument("--only", default=",".join(lines), help="names of shapes of JSON lines")
    given = parser.parse_args()
    print(f"| shape | {' | '.join(STAGES)} | all |")
    print("|---" + "|---:" * (len(STAGES) + 1) + "|")
    for name in given.only.split(","):
        shape = SHAPES[name]
        by = tuple(read_path(one, "--group-by") for one in shape.flags[1:])
        reading = Reading(grouping=Grouping(by) if by else None)
        with tempfile.TemporaryDirectory() as folder:
            path = write(name, Path(folder) / "dump.jsonl", given.megabytes)
            every = runs(path, reading) | {"loop": partial(loop, name, str(path))}
            times: dict[str, list[float]] = {stage: [] for stage in every}
            for _ in range(given.turns + 1):
                for stage, run in every.items():
                    times[stage].append(spent(run))
        best = {stage: min(found[1:]) for stage, found in times.items()}  # the first imports
        each = [best[stage] / best["loop"] for stage in STAGES]
        cells = [each[0], *(later - before for before, later in pairwise(each)), each[-1]]
        print(f"| {shape.title} | {' | '.join(f'{one:.2f}' for one in cells)} |", flush=True)


if __name__ == "__main__":
    main()
