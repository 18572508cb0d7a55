"""Which rows are printed, totals of parts, and the numbers of records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from command import answer, names_at, run
from files import each, in_blocks, some
from planted import write

# ---- ``--having``: which rows of output are printed, and shares, which can be asked for ----------


def record(seed: int, **more: object) -> dict[str, Any]:
    """Four responses, one of them empty, whose policy has moved."""
    draw = np.random.default_rng(seed)
    lengths = [5, 0, 3, 7]
    new, old = ([(-draw.exponential(0.5, n)).tolist() for n in lengths] for _ in range(2))
    words = [[f"w{one}" for one in draw.integers(0, 4, n)] for n in lengths]
    rewards = {"right": [1.0, 0.0, 1.0, 0.0], "short": [0.5, 1.0, 0.0, 0.25]}
    given = {"log_probs_new": new, "log_probs_old": old, "rewards": rewards, "tokens": words}
    return given | {"log_probs_rollout": new, "step": seed % 2} | more


RECORDS = [record(seed, id=f"r{seed}") for seed in range(5)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "a.jsonl", RECORDS)


def rows(path: Path, level: str, *words: str) -> list[dict[str, Any]]:
    """The rows that jsonl has, each with every field."""
    names = ",".join(names_at(path, level))
    printed = run(*EVAL, path, "--level", level, "-f", "jsonl", "--fields", names, *words)
    assert printed.exit_code == 0, printed.stderr
    return [json.loads(line) for line in printed.stdout.splitlines()]


EVAL = ("eval", "-v", "dr", "--epsilon", "0.1")
TESTS: list[tuple[str, str, Any]] = [
    ("token", 'clip=="high" && share>0.01', lambda r: r["clip"] == "high" and r["share"] > 0.01),
    ("token", "clip==null", lambda r: r["clip"] is None),
    ("token", "clip!=null && token==w1", lambda r: r["clip"] is not None and r["token"] == "w1"),
    ("token", "token=='a&&b'", lambda r: False),
    ("token", "mismatch>0 && response==3", lambda r: r["mismatch"] > 0 and r["response"] == 3),
    ("token", "reward.right==1", lambda r: r["reward"]["right"] == 1),
    ("token", "ratio<1", lambda r: r["ratio"] < 1),
    ("token", "position>=6", lambda r: r["position"] >= 6),
    ("token", "kl==null", lambda r: r["kl"] is None),
    ("response", "length==0", lambda r: r["length"] == 0),
    ("response", "share>0.05 && id!=r0", lambda r: r["share"] > 0.05 and r["id"] != "r0"),
    ("response", "contribution_share<=0.02", lambda r: r["contribution_share"] <= 0.02),
    ("record", "contribution>0", lambda r: r["contribution"] > 0),
    ("record", "id==r3", lambda r: r["id"] == "r3"),
    ("record", "share>0.2", lambda r: r["share"] > 0.2),
]


@pytest.mark.more
@each(("level", "test", "fits"), some(TESTS, 8), ids=lambda case: case[1])
def test_the_rows_that_fit_are_printed_in_every_format(
    path: Path, tmp_path: Path, level: str, test: str, fits: Any
) -> None:
    expected = [row for row in rows(path, level) if fits(row)]
    assert rows(path, level, "--having", test) == expected
    words = (*EVAL, path, "--level", level, "--having", test)
    names = ("id", "response", "position")[: {"record": 1, "response": 2, "token": 3}[level]]
    places = [[row[name] for name in names] for row in expected]
    listed = [tuple(map(str, one)) for one in places]
    assert [tuple(line.split("\t")) for line in _lines(*words, "--only", ",".join(names))] == listed
    csv = _lines(*words, "-f", "csv", "--fields", ",".join(names))[1:]
    assert [tuple(line.split(",")) for line in csv] == listed
    document = json.loads(run(*words, "--json").stdout)
    assert _places(document["records"], level) == places
    nested = [json.loads(line) for line in _lines(*words, "-f", "jsonl", "--nest")]
    assert _places(nested, level) == places
    table = tmp_path / "rows.parquet"
    run(*words, "-f", "parquet", "-o", table)
    assert [[*one.values()] for one in pq.read_table(table, columns=[*names]).to_pylist()] == places
    enough = run(*words, "--limit", str(len(places) or 1))  # counts rows that fit
    assert "more" not in enough.stderr
    told = run(*words, "--limit", "0")
    every = {"record": 5, "response": 20, "token": 75}[level]
    assert f"--having keeps {len(places)} of {every} {level}s" in told.stderr
    assert "…" not in told.stderr


def _lines(*words: object) -> list[str]:
    return run(*words).stdout.splitlines()


def _places(records: list[dict[str, Any]], level: str) -> list[list[Any]]:
    """Where each row is, of nested records."""
    found = []
    for one in records:
        for response in one["responses"] if level != "record" else [{}]:
            number = [response["response"]] if response else []
            positions = response["tokens"]["position"] if level == "token" else [None]
            found += [[one["id"], *number, *([at] if at is not None else [])] for at in positions]
    return found


@each(("level", "name", "words"), [
    ("record", "shaer", "did you mean share?"),
    ("token", "advantge", "did you mean advantage?"),
    ("record", "advantge", "advantage is a column of --level trajectory, turn, response, token"),
    ("response", "records", "records is a column of --level batch"),
])  # fmt: skip
def test_a_misspelt_column_is_named_at_whatever_level_it_is(
    level: str, name: str, words: str, path: Path
) -> None:
    printed = run(*EVAL, path, "--level", level, "--having", f"{name}>0.1")
    assert printed.stderr.strip().endswith(f"there is no column '{name}'; {words}")
    assert "no field stpe; did you mean step?" in run("eval", path, "--where", "stpe==1").stderr


def test_totals_are_not_touched(path: Path) -> None:
    words = ("eval", path, "-v", "dr", "--level", "token")
    assert answer(*words, "--having", "share>0.5")["total"] == answer(*words)["total"]
    batches = ("eval", path, "-v", "dr", "--level", "batch", "--batch", "step")
    all_of_them = answer(*batches)
    some = answer(*batches, "--having", "step==1")
    assert some["total"] == all_of_them["total"]
    assert some["batches"] == [one for one in all_of_them["batches"] if one["step"] == 1]
    assert _lines(*batches, "--having", "step==1", "--only", "step,records") == ["1\t2"]
    assert "mean of 2 batches" in run(*batches, "--having", "step==1").stdout
    none = run(*batches, "--having", "step==9")
    assert (none.exit_code, "keeps 0 of 2 batches" in none.stderr) == (0, True)


@each("batch", ["input", "record", "step"])
def test_shares_are_of_the_batch(path: Path, batch: str) -> None:
    for level in ("token", "response", "record"):
        for name in ("share", "contribution_share"):
            names = f"id,{name}" + (",step" if batch == "step" else "")
            lines = _lines(*EVAL, path, "--level", level, "--batch", batch, "--only", names)
            sums: dict[str, float] = {}
            for cells in (line.split("\t") for line in lines):
                whose = {"input": "", "record": cells[0], "step": cells[-1]}[batch]
                sums[whose] = sums.get(whose, 0.0) + float(cells[1])
            assert [*sums.values()] == pytest.approx([1.0] * len(sums))
    tokens = rows(path, "token", "--batch", batch)
    if batch == "input":
        whole = sum(abs(row["gradient"]) for row in tokens)
        shares = [row["share"] for row in tokens]
        assert shares == pytest.approx([abs(row["gradient"]) / whole for row in tokens])


def test_the_same_bytes_whatever_the_jobs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (*EVAL, path, "--level", "token", "--having", "share>0.01", "-f", "csv")
    alone = run(*words, "--jobs", "1").stdout
    in_blocks(monkeypatch, 1_000)
    assert run(*words, "--jobs", "2").stdout == alone


def test_only_the_loss_of_many_records_says_how_to_get_one(path: Path) -> None:
    found = run("eval", path, "-v", "dr", "--only", "loss")
    assert len(found.stdout.splitlines()) == 5
    said = "--only printed 5 lines, one for each record; for the whole batch's: "
    assert said + "--level batch --only loss" in found.stderr
    assert "--only" not in run("eval", path, "-v", "dr", "--only", "loss", "-q").stderr
    for words in (("--level", "batch"), ("--record", "0"), ("--limit", "2")):
        told = run("eval", path, "-v", "dr", "--only", "loss", *words).stderr
        assert "--only" not in told, words
    assert "--only" not in run("eval", path, "-v", "dr", "--only", "id").stderr


# ---- of a batch that was not read whole no total is printed, for a script would take it for one --


# ---- a record is called by its id, or else by one number, in every report and by every flag ------


RECORD = {"log_probs_new": [[-0.9, -0.2], [-1.1]], "log_probs_old": [[-1.0, -0.25], [-1.0]]}


@pytest.fixture
def gaps(tmp_path):
    """Three records without ids on lines 1, 3 and 6."""
    path = tmp_path / "gaps.jsonl"
    own = {"rewards": [1, 1], "advantages": [0, 0], "expected": {"loss": 9.0}}
    line = json.dumps(RECORD | own)
    path.write_text(f"{line}\n\n{line}\n\n\n{line}\n")
    return str(path)


def names(grpo, command: str, path: str, *flags: str) -> list[object]:
    done = grpo(command, path, *flags, "--json")
    document = json.loads(done.stdout)
    if command == "check":
        return [row["record"] for row in document["findings"] if row["code"] == "dead-group"]
    return [row["id"] for row in document["records"]]


@pytest.mark.more
def test_blank_lines_give_no_other_numbers(grpo, gaps):
    assert names(grpo, "eval", gaps, "-v", "dr") == [0, 2, 5]
    assert names(grpo, "verify", gaps, "-v", "dr") == [0, 2, 5]
    assert names(grpo, "check", gaps) == [0, 2, 5]
    written = [json.loads(line) for line in grpo("convert", gaps).stdout.splitlines()]
    assert [record.get("id", at) for at, record in enumerate(written)] == [0, 2, 5]


@pytest.mark.parametrize("number", ["0", "2", "5"])
def test_the_number_that_a_report_shows_is_the_one_that_flags_take(grpo, gaps, number):
    for command in ("eval", "explain", "show"):
        done = grpo(command, gaps, "-v", "dr", "--record", number)
        assert done.exit_code == 0
    assert f"record {number}" in grpo("show", gaps, "-v", "dr", "--record", number).stdout
    assert names(grpo, "eval", gaps, "-v", "dr", "--record", number) == [int(number)]


@each("words", [("eval",), ("eval", "--level", "token"), ("show",), ("show", "--strings")])
def test_a_question_mark_lists_the_columns_with_what_they_mean(tmp_path, words):
    path = write(tmp_path / "a.jsonl", RECORDS)
    listed = run(*words, path, "--having", "?").stdout.splitlines()[2:]
    assert listed
    assert [line for line in listed if not line.startswith(" ") and len(line.split()) < 2] == []
