"""Rows as Parquet, and what is decoded once."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import orjson
import pytest
from files import some

# ---- ``eval --format parquet``: the rows of ``--format jsonl``, bit for bit, in columns ----------


pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROOT = Path(__file__).parents[2]
FILES = [
    ROOT / "samples" / "arithmetic.jsonl",
    ROOT / "tests" / "data" / "rollouts" / "trl-1.16.0-gspo.jsonl",
    ROOT / "tests" / "data" / "rollouts" / "verl-0.9.1-cases.jsonl",
]
LEVELS = ("batch", "record", "response", "token")


@pytest.fixture
def both(grpo, tmp_path):
    """The rows of a Parquet file, and those that are printed as lines."""

    def run(*arguments):
        out = tmp_path / "out.parquet"
        done = grpo("eval", *arguments, "-f", "parquet", "-o", out)
        assert done.exit_code == 0, done.output
        printed = grpo("eval", *arguments, "-f", "jsonl").stdout
        return pq.read_table(out), [orjson.loads(line) for line in printed.splitlines()]

    return run


def bits(value):
    """A value in which floats are told apart by their bits; infinity is null in JSON."""
    if isinstance(value, list):
        return [bits(one) for one in value]
    if isinstance(value, float):
        return value.hex() if math.isfinite(value) else None
    return value


def same(table, rows):
    assert table.num_rows == len(rows)
    for name in rows[0]:
        kind = str(table.schema.field(name).type)
        wanted = [float(one) if kind == "double" and one is not None else one
                  for one in (row[name] for row in rows)]  # fmt: skip
        assert bits(table.column(name).to_pylist()) == bits(wanted), name
    assert table.column_names == list(rows[0])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("path", some(FILES, 2), ids=lambda path: path.stem)
def test_rows_are_those_of_jsonl(both, path, level):
    same(*both(path, "--level", level, "-v", "dr"))


@pytest.mark.parametrize("level", LEVELS[1:])
def test_fields_and_limits(both, level):
    fields = {"record": "loss,id", "response": "line,contribution,id,response"}
    fields["token"] = "ratio,reward,line,clip,id,group"
    found = both(FILES[0], "--level", level, "--fields", fields[level], "--limit", "3")
    same(*found)


RECORDS = [
    {"id": "a", "logps": [[-1.0, -2.0], [-0.5]], "rewards": [1, 0], "uid": ["x", "x"]},
    {"id": 7, "logps": [[], [-0.5, -0.25]], "rewards": [0.5, 1], "uid": ["y", "z"],
     "old_logp_per_token": [[], [-1.5, -0.25]], "tokens": [[], ["a", "b"]]},
    {"logps": [[-3.0]], "advantages": [1.0], "mask": [[0]]},
]  # fmt: skip


def written(path, records):
    path.write_bytes(b"".join(orjson.dumps(one) + b"\n" for one in records))
    return path


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "rewards", [[1, 0], [0.0, -0.0], {"a": [1, 0], "b": [0.5, 1]}, [[1, 0.5], [0, 1]]]
)
def test_what_users_write(both, tmp_path, level, rewards):
    path = written(tmp_path / "in.jsonl", [{**RECORDS[0], "rewards": rewards}])
    same(*both(path, "--level", level, "--kl", "none", "-v", "dr"))


@pytest.mark.parametrize("level", LEVELS[1:])
def test_ids_of_several_types_are_text(both, tmp_path, level):
    table, rows = both(
        written(tmp_path / "in.jsonl", RECORDS), "--level", level, "-v", "dr", "--kl", "none"
    )
    assert len(rows) == table.num_rows
    assert table.column("id").to_pylist() == [str(row["id"]) for row in rows]


@pytest.mark.parametrize("level", ["record", "token"])
@pytest.mark.parametrize("ids", [(2**63, 2**64 - 1), (2**64 - 1, 7), (2**64 - 1, -7)])
def test_ids_of_64_bits(both, tmp_path, level, ids):
    """Hashes are often such; beside a negative one they are text."""
    path, rest = tmp_path / "in.jsonl", {"log_probs": [[-0.5]], "advantages": [1.0]}
    path.write_bytes(b"\n".join(orjson.dumps({"id": one} | rest) for one in ids))
    table, lines = both(path, "-v", "dr", "--level", level)
    found = [line["id"] for line in lines]
    assert found == [*ids]
    assert table["id"].to_pylist() == (found if min(ids) >= 0 else [str(one) for one in ids])


def test_a_type_that_changes_is_one_line(grpo, tmp_path):
    records = [{**one, "id": "b" if at == 2 else at} for at, one in enumerate(RECORDS * 2)]
    path = written(tmp_path / "in.jsonl", records)
    done = grpo("eval", path, "-v", "dr", "--kl", "none", "-f", "parquet", "-o", tmp_path / "o")
    assert done.exit_code == 2
    assert "id is int64 in the first rows and string later; a column has one type" in done.stderr
    assert not (tmp_path / "o").exists()


@pytest.mark.more
@pytest.mark.parametrize("jobs", some([2, 1], 1))
def test_row_groups(grpo, tmp_path, monkeypatch, jobs):
    monkeypatch.setattr("grpo_cli.records.tables.writing.GROUP_BYTES", 1 << 14)
    path = written(tmp_path / "in.jsonl", [{**RECORDS[0], "id": at} for at in range(9000)])
    out = tmp_path / "out.parquet"
    more = ("--level", "token", "--kl", "none", "--jobs", jobs, "--fields", "id,line,token,ratio")
    assert grpo("eval", path, *more, "-f", "parquet", "-o", out).exit_code == 0
    meta = pq.ParquetFile(out).metadata
    assert meta.num_row_groups > 1
    lines = grpo("eval", path, *more, "-f", "jsonl").stdout.splitlines()
    same(pq.read_table(out), list(map(orjson.loads, lines)))


def test_without_the_package(grpo, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = grpo("eval", FILES[0], "-f", "parquet", "-o", tmp_path / "o")
    assert done.exit_code == 2
    assert "pip install pyarrow" in done.stderr
    assert not (tmp_path / "o").exists()


def test_whole_or_not_at_all(grpo, tmp_path):
    path = written(tmp_path / "in.jsonl", [RECORDS[0], {"logps": 3}])
    out = tmp_path / "out.parquet"
    out.write_bytes(b"before")
    done = grpo("eval", path, "--kl", "none", "-f", "parquet", "-o", out)
    assert done.exit_code == 3
    assert out.read_bytes() == b"before"
    done = grpo("eval", path, "--kl", "none", "-f", "parquet", "-o", out, "--on-error", "skip")
    assert done.exit_code == 3
    assert pq.read_table(out).num_rows == 1


def test_columns_are_packed_where_that_is_worth_it(grpo, tmp_path):
    """Noise is stored as it is; ids have a least and a greatest."""
    noise = np.random.default_rng(3).random((2, 2_000))
    new, old = (-noise).tolist()
    one = {"log_probs_new": [new], "log_probs_old": [old], "advantages": [1.0]}
    path, out = written(tmp_path / "in.jsonl", [one]), tmp_path / "out.parquet"
    fields = "id,position,ratio,surrogate,weight"
    flags = ("-v", "dr", "--surrogate", "reinforce", "--level", "token", "--fields", fields)
    assert grpo("eval", path, *flags, "-f", "parquet", "-o", out).exit_code == 0
    group = pq.ParquetFile(out).metadata.row_group(0)
    about = [group.column(at) for at in range(group.num_columns)]
    assert {one.path_in_schema: (one.compression, one.has_dictionary_page) for one in about} == {
        "id": ("ZSTD", True),
        "position": ("ZSTD", True),
        "ratio": ("UNCOMPRESSED", False),
        "surrogate": ("UNCOMPRESSED", False),
        "weight": ("ZSTD", True),
    }
    assert "id" in [one.path_in_schema for one in about if one.is_stats_set]


# ---- no command decodes a record of plain JSON more often than it has to pass over it ------------


UNUSUAL = {"entropies": [[0.5, 0.25], [0.1]], "hyperparameters": {"beta": 0.0}}


@pytest.mark.parametrize("more", [{}, UNUSUAL], ids=["plain", "one by one"])
@pytest.mark.parametrize(
    "command",
    [
        ["eval", "--level", "token", "-f", "csv"],
        ["eval", "--where", "step==1"],
        ["compare", "--variants", "grpo,dr"],
        ["convert"],
        ["check"],
    ],
    ids=" ".join,
)
def test_a_record_is_decoded_once(grpo, dump, monkeypatch, command, more):
    path = dump(*[{"id": f"r{at}", "step": 1} | more for at in range(5)])
    lines = {json.dumps(orjson.loads(line)) for line in path.read_bytes().splitlines()}
    seen: list[str] = []
    real = orjson.loads

    def counted(text):
        value = real(text)
        seen.append(json.dumps(value))
        return value

    monkeypatch.setattr(orjson, "loads", counted)
    assert grpo(*command, str(path)).exit_code == 0
    passes = 2 if "token" in command else 1  # the denominators of the whole batch come first
    assert sorted(text for text in seen if text in lines) == sorted([*lines] * passes)
