"""Records of all kinds, and the files that hold them."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any


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
