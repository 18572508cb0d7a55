"""The files that are timed: groups of 8 with reference, noise that no packing makes smaller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson

GROUP = 8


def write(path: Path, records: int, tokens: int) -> Path:
    """Writes JSONL with about so many tokens a response, each of which counts."""
    rng = np.random.default_rng(records)
    with path.open("wb") as stream:
        for number in range(records):
            lengths = rng.integers(max(1, tokens * 3 // 4), tokens * 5 // 4 + 1, GROUP)
            new = [-rng.exponential(0.5, length) - 1e-9 for length in lengths]
            record = {
                "id": number,
                "log_probs_new": [row.tolist() for row in new],
                "log_probs_old": [near(row, 0.05, rng) for row in new],
                "log_probs_ref": [near(row, 0.1, rng) for row in new],
                "rewards": rng.integers(0, 2, GROUP).astype(float).tolist(),
            }
            stream.write(orjson.dumps(record) + b"\n")
    return path


def expecting(path: Path) -> Path:
    """The same with what the advantages should be, for ``verify``."""
    made = path.with_suffix(".expecting.jsonl")
    with path.open("rb") as records, made.open("wb") as stream:
        for line in records:
            record = orjson.loads(line)
            rewards = np.array(record["rewards"])
            centred = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-8)
            record["expected"] = {"advantages": centred.tolist()}
            stream.write(orjson.dumps(record) + b"\n")
    return made


def near(row: Any, spread: float, rng: np.random.Generator) -> list[float]:
    return (-np.abs(row + rng.normal(0, spread, len(row)))).tolist()


def tables(path: Path) -> tuple[Path, Path]:
    """The same as Parquet: a row a record, and a row a response; eight row groups."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    nested, rows = path.with_suffix(".parquet"), path.with_suffix(".rows.parquet")
    if not rows.exists():
        records = [orjson.loads(line) for line in path.read_bytes().splitlines()]
        _write(pq, pa.Table.from_pylist(records), nested)
        names = [name for name in records[0] if name.startswith("log_probs")]
        each = [
            {"uid": one["id"], **{name: one[name][at] for name in names}, "reward": reward}
            for one in records
            for at, reward in enumerate(one["rewards"])
        ]
        _write(pq, pa.Table.from_pylist(each), rows)
    return nested, rows


def _write(pq: Any, table: Any, path: Path) -> None:
    pq.write_table(table, path, compression="zstd", row_group_size=max(1, table.num_rows // 8))
