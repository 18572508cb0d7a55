"""Records of all kinds, and the files that hold them."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

from grpo_cli.engine.cluster import tasks
from grpo_cli.engine.cluster.tasks import Job, Result
from grpo_cli.errors import GrpoError
from grpo_cli.records.open import blocks


def made(number: int, rng: random.Random) -> dict[str, Any]:
    """A record; some are unusual: masked, without tokens, with ids, with their own settings."""
    lengths = [rng.choice([0, 1, 2, 5, 9]) for _ in range(rng.choice([1, 2, 4]))]

    def column(spread: float) -> list[list[float]]:
        return [[-abs(rng.gauss(1, spread)) for _ in range(length)] for length in lengths]

    record = {
        "id": f"r{number}",
        "log_probs_new": column(0.5),
        "log_probs_old": column(0.6),
        "log_probs_ref": column(0.7),
        "rewards": [rng.choice([0.0, 1.0, 0.3]) for _ in lengths],
    }
    if number % 5 == 0:
        record["mask"] = [[rng.randrange(2) for _ in range(length)] for length in lengths]
    if number % 7 == 0:
        record["group_ids"] = [rng.choice("ab") for _ in lengths]
    if number % 11 == 0:
        record["hyperparameters"] = {"beta": 0.1, "epsilon": 0.3}
    if number % 13 == 0:
        record["tokens"] = [["é\n"] * length for length in lengths]
    return record


def lines() -> list[bytes]:
    """Records as lines, of which some are empty, one is malformed, and one has a bad value."""
    rng = random.Random(1_016)
    found = [json.dumps(made(number, rng)).encode() for number in range(60)]
    found[20] = b'{"log_probs_new": [[0.5]], "rewards": [1]}'
    found[30:30] = [b"", b"", b" "]
    found[50] = b"{broken"
    return found


def files(folder: Path) -> list[str]:
    """Lines with and without a last end, packed, empty lines before, a document."""
    every = lines()
    (folder / "a.jsonl").write_bytes(b"\n".join(every) + b"\n")
    (folder / "b.jsonl").write_bytes(b"\n\n" + b"\n".join(every[:40]))
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(b"\n".join(every[:15])))
    (folder / "d.json").write_bytes(b"[" + b",\n".join(every[:9]) + b"]")
    (folder / "e.jsonl").write_bytes(every[3])
    return [
        str(folder / name) for name in ("a.jsonl", "b.jsonl", "c.jsonl.gz", "d.json", "e.jsonl")
    ]


def unnamed(folder: Path) -> list[str]:
    """Records without ids, some beyond empty lines, one that cannot be read; and a table."""
    import pyarrow as pa
    import pyarrow.parquet

    rng = random.Random(1_016)
    rows = [
        {"log_probs_new": [[-rng.random()] * 3] * 2, "rewards": [rng.random(), at % 3]}
        for at in range(60)
    ]
    found = [json.dumps(row) for row in rows]
    found[20] = '{"log_probs_new": [[0.5, 1]], "rewards": [1]}'
    found[30] = found[30].replace("}", ', "note": null}')
    found[31] = found[31].replace("{", '{"id": null, ')
    found[32] = found[32].replace("{", '{"id": "named", ')
    (folder / "f.jsonl").write_text("\n".join(found[:40]) + "\n\n" + "\n".join(found[40:]))
    (folder / "g.jsonl").write_text("\n\n" + "\n".join(found[45:]))
    pa.parquet.write_table(pa.Table.from_pylist(rows), folder / "h.parquet", row_group_size=9)
    return [str(folder / name) for name in ("f.jsonl", "g.jsonl", "h.parquet")]


class Played:
    """In the place of ``grpo_cli.engine.cluster.session.Session``."""

    def __init__(self, room: int, seed: int) -> None:
        self.limit, self.random = room, random.Random(seed)
        self.values: dict[int, Any] = {}
        self.counts: dict[int, Any] = {}  # of ranges: other tasks refer to them
        self.work: dict[int, Any] = {}
        self.most = self.count = 0

    def room(self, jobs: int | None) -> int:
        return self.limit

    def put(self, job: Job) -> Job:
        return job

    def later(self, function: Any, *arguments: Any) -> int:
        self.count += 1
        self.work[self.count] = (function, arguments)
        self.most = max(self.most, len(self.work))
        return self.count

    def look(self, wanted: Any) -> tuple[int, int]:
        ref = self.later(blocks.look, wanted)
        return ref, -ref

    def evaluate(self, job: Job, number: int, portion: Any, *before: Any) -> int:
        return self.later(self._evaluated, job, number, portion, *before)

    def _evaluated(
        self, job: Job, number: int, portion: Any, *before: Any
    ) -> list[Result | GrpoError]:
        """What Ray makes of it: references become values, once what they refer to is done."""
        if before:
            data, lines, *counts = before
            for ref in (-data, *counts):
                if ref in self.work:
                    self._do(ref)
                if isinstance(self.counts[ref], GrpoError):
                    raise self.counts[ref]
            before = self.values.pop(data), lines, *(self.counts[ref] for ref in counts)
        return tasks.evaluate(job, number, portion, *before)

    def wait(self, refs: list[int]) -> list[int]:
        waiting = [ref for ref in refs if ref in self.work]
        if len(waiting) == len(refs) or (waiting and self.random.random() < 0.3):
            self._do(self.random.choice(waiting))
        return [ref for ref in refs if ref not in self.work]

    def _do(self, ref: int) -> None:
        function, arguments = self.work.pop(ref)
        try:
            found = function(*arguments)
        except GrpoError as error:
            found = error
        if isinstance(found, tuple):  # of a range
            found, self.values[-ref] = found
        if function is blocks.look or isinstance(found, int):
            self.counts[ref] = found
        else:
            self.values[ref] = found

    def get(self, ref: int, place: str) -> Any:
        found = self.counts[ref] if ref in self.counts else self.values.pop(ref)
        if isinstance(found, GrpoError):
            raise found
        return found

    def cancel(self, refs: list[int], *, wait: bool) -> None:
        for ref in refs:
            self.work.pop(ref, None)
