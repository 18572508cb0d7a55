"""Any jobs, block size and cluster: the bytes, messages and exit code of one process."""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import command
import mixed
import pytest
from files import each, grouped_rows, some

from grpo_cli import evaluate

Cut = Callable[..., None]
WAYS: list[tuple[list[str], dict[str, int]]] = [
    (["--jobs", "1"], {"block": 700}),
    (["--on", "ray"], {"task": 500, "room": 3}),
    (["--jobs", "2"], {"block": 3_000}),
    (["--jobs", "1"], {"block": 5_000}),
    (["--on", "ray"], {"task": 2_000, "room": 1, "seed": 1}),
    (["--jobs", "1"], {"block": 1}),
    (["--on", "ray"], {"task": 7_001, "room": 5, "seed": 2}),
    (["--on", "ray"], {"task": 1 << 20, "room": 2, "seed": 3}),
]
"""Flags that say where the work is done, and how the input is cut there."""


def printed(words: list[str], *where: str) -> tuple[int, str, list[str]]:
    result = command.run(*words, *where)
    return result.exit_code, result.stdout, result.stderr.splitlines()


def same_everywhere(cut: Cut, words: list[str], ways: list[Any]) -> tuple[int, str, list[str]]:
    """What one process prints, which all ways do."""
    cut(4 << 20)
    expected = printed(words, "--jobs", "1")
    for flags, sizes in ways:
        cut(**sizes)
        assert printed(words, *flags) == expected, (flags, sizes)
    return expected


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return mixed.files(tmp_path_factory.mktemp("mixed"))


@pytest.fixture(scope="module")
def unnamed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return mixed.unnamed(tmp_path_factory.mktemp("unnamed"))


COMMANDS = [
    "eval --level token --json -v gspo",
    "eval --level record -f csv -v lite-ppo",
    "eval --level batch -f jsonl -v lite-ppo --batch file",
    "eval --level token -f csv -v grpo --beta 0 --batch record",
    "compare -v grpo,lite-ppo,cispo --json",
    "compare -v grpo,dr --batch record --json",
    "convert",
]


@pytest.mark.parametrize("line", some(COMMANDS, 1))
def test_files_of_all_kinds(cut: Cut, files: list[str], line: str) -> None:
    at = COMMANDS.index(line)
    ways = some(WAYS, 4) if at == 0 else [*islice(cycle(WAYS), 3 * at, 3 * at + 4)]
    name, *flags = line.split()
    code, _, err = same_everywhere(cut, [name, *files, *flags, "--on-error", "skip"], ways)
    assert code == 3
    told = "\n".join(err)
    assert told.count("malformed JSON at column 2: ") == 1
    assert told.count("expected a log-prob <= 0, got 0.5") == 1
    assert "the same error in 1 more record, 2 files in all" in told


@pytest.mark.more
@pytest.mark.parametrize("line", ["convert"])
def test_records_without_ids_and_a_table(cut: Cut, unnamed: list[str], line: str) -> None:
    name, *flags = line.split()
    words = [name, *unnamed, *flags, "--on-error", "skip"]
    code, out, err = same_everywhere(cut, words, WAYS[1:5])
    assert code == 3
    assert "log_probs_new[0][0]" in err[0]
    assert sum("expected a log-prob <= 0, got 0.5" in one for one in err) == 1
    if name == "convert":
        assert out.count('"id":') > 20  # where the numbers of lines would be others


def test_bytes_that_json_cannot_hold_end_a_conversion(
    cut: Cut, unnamed: list[str], tmp_path: Path
) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    row = {"log_probs_new": [[-1.0]], "rewards": [1.0], "note": b"x"}
    held = str(tmp_path / "held.parquet")
    parquet.write_table(pa.Table.from_pylist([row | {"note": None}, row]), held)
    words = ["convert", unnamed[0], held, unnamed[1], "--on-error", "skip"]
    code, _, err = same_everywhere(cut, words, WAYS[1:4])
    assert code == 3
    assert f"{held}: [1].note: expected a value that JSON can hold, got bytes; " in err[-1]


@pytest.mark.parametrize("level", some(["token", "batch"], 1))
def test_the_first_bad_record_ends_it(cut: Cut, files: list[str], level: str) -> None:
    words = ["eval", *files, "-v", "dr", "--level", level, "-f", "jsonl"]
    code, out, err = same_everywhere(cut, words, some(WAYS, 4))
    assert (code, "a.jsonl:21: " in err[-1]) == (3, True)
    assert bool(out) == (level == "token")


@pytest.mark.more
def test_where_reading_fails_all_before_is_there(
    cut: Cut, files: list[str], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.jsonl.gz"
    packed = gzip.compress(b"\n".join(mixed.lines()))
    for part in (0.1, 0.5, 0.9):
        broken.write_bytes(packed[: int(len(packed) * part)])
        words = ["eval", files[0], str(broken), files[1], "-v", "dr", "--on-error", "skip"]
        _, out, err = same_everywhere(cut, [*words, "--only", "loss"], WAYS[:4])
        assert "is the file cut off" in err[-1]
        assert len(out.splitlines()) > 50
    gone = ["eval", files[0], str(tmp_path / "gone"), "-v", "dr", "--only", "loss"]
    (tmp_path / "gone").mkdir()
    _, out, err = same_everywhere(cut, gone, WAYS[:3])
    assert "gone" in err[-1]


@pytest.mark.more
@each("count", [12, 13])
def test_environments_have_rewards_where_they_are_few_in_all_of_the_run(
    cut: Cut, tmp_path: Path, count: int
) -> None:
    """However few a block has, and however many."""
    path, row = tmp_path / "run.jsonl", {"rewards": [1, 0], "log_probs_new": [[-0.5], [-0.25]]}
    rows = [
        row | {"step": at // 20, "id": at, "task": f"t{at % (3 if at < 100 else count)}"}
        for at in range(300)
    ]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    _, out, _ = same_everywhere(cut, ["trend", str(path), "--json"], some(WAYS, 4))
    names = {name for step in json.loads(out)["steps"] for name in step if "task=" in name}
    assert len(names) == (12 if count == 12 else 0)


def test_rows_of_a_group_stay_together(cut: Cut, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    grouped_rows(path, 200, 1_016)
    words = ["eval", str(path), "-v", "dr", "--group-by", "uid", "--level", "token", "-f", "csv"]
    same_everywhere(cut, words, WAYS)
    total = evaluate(str(path), "dr").total
    assert total["groups"] == 200
    assert command.answer(*words[:-4])["total"]["groups"] == 40


SHORT = [b'{"log_probs_new": [[-1.5]], "rewards": [1]}', b"", b"7", b"", b"{", b"[]", b""]


@each(("size", "times"), [(1, 1), (2, 1), (3, 1), (5, 1), (8, 1), (2_000, 99)])
def test_lines_of_many_ranges(cut: Cut, tmp_path: Path, size: int, times: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([*SHORT * times, SHORT[0]]))
    words = ["eval", str(path), "-v", "dr", "--only", "line", "--on-error", "skip"]
    found = same_everywhere(cut, words, [(["--on", "ray"], {"task": size, "room": 4})])
    assert len(found[1].splitlines()) == times + 1


BAD = b'{"log_probs_new": [[0.5]], "rewards": [1]}'
GOOD = BAD.replace(b"0.5", b"-0.5")
SGLANG = b'{"meta_info": {"output_token_logprobs": [[-1.0, 7]]}, "reward": 1}'


@each(("first", "last"), [(SGLANG, b"}"), (SGLANG, BAD), (GOOD, SGLANG.replace(b"-1.0", b"0.5"))])
def test_nothing_is_told_of_what_follows_the_error_that_ends_a_run(
    cut: Cut, tmp_path: Path, first: bytes, last: bytes
) -> None:
    """Whatever is read together with it."""
    masked = {"log_probs_new": [[-1.0]], "rewards": [1], "loss_mask": [[1]], "response_mask": [[1]]}
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([first, last, json.dumps(masked).encode()]))
    words = ["eval", str(path), "-v", "dr", "-f", "jsonl"]
    _, _, err = same_everywhere(cut, words, [WAYS[0], WAYS[5], WAYS[7]])
    assert err[-1].startswith(f"grpo: {path}:2: ")
    assert "read as sglang" in " ".join(err)
    assert "response_mask" not in " ".join(err)
    cut()
    assert "response_mask" in command.run(*words, "--on-error", "skip").stderr


def test_a_reference_that_only_some_records_have_is_one_error(cut: Cut, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    known = json.dumps(json.loads(GOOD) | {"log_probs_ref": [[-0.25]]}).encode()
    for lines, at in (([GOOD] * 40 + [known] * 9, 1), ([known] * 30 + [GOOD] * 4 + [known], 31)):
        path.write_bytes(b"\n".join(lines))
        words = ["eval", str(path), "--only", "line"]
        tasks = [(["--on", "ray"], {"task": size, "seed": size}) for size in (200, 700, 1 << 20)]
        code, out, err = same_everywhere(cut, words, [*tasks, *WAYS[:2]])
        assert code == 3
        assert err[-1].startswith(f"grpo: {path}:{at}: log_probs_ref: missing; ")
        assert len(out.splitlines()) == (40 if at == 1 else 30)


@pytest.mark.parametrize("advantages", [True, False])
def test_order_of_records_changes_no_bit_of_the_total(tmp_path: Path, advantages: bool) -> None:
    rng = random.Random(7)
    records = [mixed.made(number, rng) for number in range(50)]
    totals = set()
    for _ in range(3):
        rng.shuffle(records)
        found = evaluate(records, "grpo", stages={"advantage": "raw"} if advantages else None)
        totals.add(json.dumps(found.total))
    assert len(totals) == 1


def test_records_read_one_by_one_have_the_numbers_of_those_read_together(tmp_path: Path) -> None:
    """A record whose parts nest unusually is read alone, and so are those with it in a line."""
    rng = random.Random(7)
    records = [mixed.made(number, rng) for number in range(40)]
    together = evaluate(records, "grpo", batch="record").columns("token")
    alone = [evaluate(one, "grpo").columns("token") for one in records]
    for name in ("ratio", "contribution", "gradient", "kl"):
        joined = [value for one in alone for value in one.get(name, []).tolist()]
        assert together[name].tolist() == joined, name


@pytest.mark.skipif(sys.platform == "win32", reason="a pipe with a name")
def test_a_pipe_is_read_once_and_kept_where_it_is_needed_twice(tmp_path: Path) -> None:
    import os
    import threading

    path = tmp_path / "pipe"
    os.mkfifo(path)
    for variant, passes in (("dr", 1), ("lite-ppo", 2)):
        text = "\n".join(json.dumps(json.loads(GOOD)) for _ in range(3))
        writer = threading.Thread(target=lambda text=text: path.write_text(text))
        writer.start()
        result = command.run("eval", path, "-v", variant, "--level", "batch", "--only", "records")
        writer.join()
        assert result.stdout == "3\n"
        assert ("was stored in a temporary file" in result.stderr) == (passes == 2)
