"""Formats: how they are recognised, what cannot be read, dumps that unpack to gigabytes."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from command import answer, run
from files import each, some

from formats import bombs, dumps
from formats.bombs import BOMBS, LIMIT
from formats.dumps import NEW, OLD, REWARDS, lines

# ---- the formats that ``grpo formats`` lists: each has its cases; one has settings in a header ---


def test_each_format_has_cases_and_says_what_it_lacks(tmp_path: Path) -> None:
    folder, path = Path(__file__).parent / "cases", tmp_path / "dump.jsonl"
    stated = {one["name"]: one for one in answer("formats")["formats"]}
    assert {*stated} - {one.stem for one in folder.glob("*.txt")} == {"canonical"}
    for name, about in stated.items():
        if name == "canonical" or about["lacks"] == ["no log-probs: nothing can be evaluated"]:
            continue
        case = (folder / f"{name}.txt").read_text().split("\n\n")[0].splitlines()
        path.write_text("\n".join(line for line in case if line.startswith("{")))
        notes = [line for line in run("convert", path).stderr.splitlines() if "note:" in line]
        lacks = [f"grpo: note: {name}: {lack}" for lack in about["lacks"]]
        named = [f"grpo: note: read as {name} ({about['title']})"] * (name != "token-ids")
        assert notes[: len(named) + len(lacks)] == [*named, *lacks]


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("array", [False, True])
def test_the_header_of_unipo_reaches_its_steps(tmp_path: Path, jobs: int, array: bool) -> None:
    """Wherever the file is cut; a step's own settings win, and flags win over both."""
    header, step = dumps.of("unipo lines")
    steps = [{**step, "step": at, "note": "x" * 700_000} for at in range(8)]
    steps[-1]["header"] = {"hparams": {"clip_eps": 0.5}}
    path = tmp_path / "run.json"
    path.write_bytes(json.dumps([header, *steps]).encode() if array else lines([header, *steps]))
    found = [json.loads(line) for line in run("convert", path, "--jobs", jobs).stdout.splitlines()]
    count = len(found) // len(steps)
    assert count == 2
    wanted = {"gamma": 1.0, "epsilon": 0.3}
    assert [one["hyperparameters"] for one in found[:-count]] == [wanted] * 7 * count
    assert [one["hyperparameters"] for one in found[-count:]] == [{"epsilon": 0.5}] * count
    signature = answer("eval", path, "-v", "dr", "--epsilon-low", "0.1", "--limit", 2)["signature"]
    assert "low=0.1,high=mixed" in signature


def test_episodes_are_read_together_as_alone(tmp_path: Path) -> None:
    """Those with branches, and without some numbers; a bad one among them is skipped."""
    text = (Path(__file__).parent / "cases" / "verifiers.txt").read_text()
    cases = [line for line in text.splitlines() if line.startswith("{") and '"nodes"' in line]
    episodes = [json.dumps(json.loads(one) | {"id": f"e{at}"}) for at, one in enumerate(cases)]
    path, skip = tmp_path / "traces.jsonl", ("--on-error", "skip")
    alone = []
    for one in episodes:
        path.write_text(one)
        alone.append(run("convert", path, *skip).stdout)
    path.write_text("\n".join(episodes))
    assert run("convert", path, *skip).stdout == "".join(alone)
    good = [one for one, found in zip(episodes, alone, strict=True) if found]
    path.write_text("\n".join(good))
    assert run("convert", path).stdout == "".join(alone)


def test_ids_in_arrays_are_printed_as_those_in_lists(tmp_path: Path) -> None:
    """All of a response's, and those alone that a mask leaves."""
    record = {"log_probs_new": [[-1.0, -2.0], [-0.5, -1.5]], "token_ids": [[7, 8], [9, 10]]}
    for mask in ([[1, 1], [1, 1]], [[1, 0], [1, 1]]):
        whole = record | {"mask": mask, "advantages": [1.0, -1.0]}
        lists, arrays = tmp_path / "in.json", tmp_path / "in.npz"
        lists.write_text(json.dumps(whole))
        np.savez(arrays, **whole)
        flags = ("-v", "dapo", "--level", "token", "--format", "csv")
        found = [run("eval", path, *flags).stdout for path in (lists, arrays)]
        assert found[0] == found[1] != ""


# ---- damaged binary files, and what depends on neither blocks nor neighbours, as once found ------


def said(path, *flags):
    result = run("convert", path, *flags)
    return result.exit_code, result.stdout + result.stderr


def test_npz_that_zip_files_can_be_but_npz_are_not(tmp_path):
    path = tmp_path / "in.npz"
    np.savez(path, log_probs=np.array([[-1.0]]))
    whole = path.read_bytes()
    entry = whole.rindex(b"PK\x01\x02")
    for at, byte in ((entry + 6, 255), (entry + 8, 1), (entry + 8, 32), (entry + 10, 77)):
        data = bytearray(whole)
        data[at] = byte
        path.write_bytes(bytes(data))
        code, words = said(path)
        assert code == 0 or "the file is damaged" in words
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("log_probs.npy", b"no array")
    assert said(path)[0] == 3


def test_arrow_files_are_not_believed(tmp_path):
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "in.arrow"
    table = pa.table({"log_probs": [[[-0.5, -1.0]]], "rewards": [[1.0]]})
    with pa.ipc.new_stream(str(path), table.schema) as sink:
        sink.write_table(table)
    whole = path.read_bytes()
    offsets = whole.rindex(np.array([0, 2], dtype="<i4").tobytes())
    data = bytearray(whole)
    data[offsets + 4 : offsets + 8] = b"\xff\xff\xff\x7f"  # an offset beyond the numbers
    for damaged in (bytes(data), whole.replace(b"rewards", b"\xff" * 7)):  # no text
        path.write_bytes(damaged)
        code, words = said(path)
        assert code == 3
        assert "the file is damaged" in words


def test_arrays_of_booleans_are_no_numbers(tmp_path):
    np.savez(tmp_path / "in.npz", log_probs=np.array([[False, False]]), rewards=np.array([1.0]))
    assert "log_probs[0][0]: expected a number, got false" in said(tmp_path / "in.npz")[1]


@pytest.mark.parametrize("long", [False, True])
def test_notes_do_not_depend_on_blocks(tmp_path, long):
    """Each is said once, with the rows of several formats in one block or in several."""
    path, value = tmp_path / "in.jsonl", {"log_probs_new": NEW, "rewards": REWARDS}
    rows = [*dumps.of("sglang"), *dumps.of("prime-rl"), *dumps.of("unipo lines")]
    more = {"x": "y" * 900_000} if long else {}
    path.write_bytes(lines([value | {"old_log_probs": OLD}, *(row | more for row in rows)]))
    found = said(path, "--on-error", "skip")[1]
    for name in ("sglang", "prime-rl", "unipo"):
        assert found.count(f"read as {name}") == 1


# ---- small files that unpack to gigabytes are refused in flat memory, and a flag reads them ------


pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
_REFUSED = ("--unpack ", "the file is damaged")


_EACH = [*(("eval", name) for name in BOMBS), ("explain", "empty-lists.json.zst")]
_LOGS = [("trend", name) for name in BOMBS if ".json" in name]  # they might be a trainer's log


@each(
    ("column", "packed", "size", "counted"),
    [
        (lambda: bombs.nothing(5000), None, "10K", "5,000 rows"),
        (lambda: bombs.nothing(5000), None, "1M", ""),
        (lambda: bombs.lists([5000]), None, "10K", "5,000 values in one batch"),
        (lambda: bombs.lists([5000]), "zstd", "1M", ""),
        (lambda: bombs.lists([200_000]), "zstd", "1M", "200,000 values in one batch"),
        (lambda: bombs.lists([200_000]), "zstd", "16M", ""),
        (lambda: ["x" * 200_000], "zstd", "100K", "bytes, unpacked,"),
    ],
)
def test_what_an_arrow_file_holds_is_counted_before_it_is_read(
    tmp_path, column, packed, size, counted
) -> None:
    (tmp_path / "in.arrow").write_bytes(bombs.arrow(packed=packed, x=column()))
    code, words = said(tmp_path / "in.arrow", "--unpack", size)
    assert code == 3
    assert counted in words
    assert ("--unpack" in words) == bool(counted)


@pytest.mark.more
@pytest.mark.parametrize(("verb", "name"), [*some(_EACH, 2), *some(_LOGS, 1)])
def test_a_small_file_takes_little_memory(verb: str, name: str) -> None:
    script = Path(__file__).with_name("bombs.py")
    command = [sys.executable, str(script), verb, name]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert found["size"] < 1 << 20
    assert found["peak"] < LIMIT
    if name.startswith("text."):
        assert found["code"] == 0
    else:
        assert found["code"] == 3
        assert found["message"][0].startswith(f"grpo: {name}:")
        refused = (*_REFUSED, "the step is missing") if verb == "trend" else _REFUSED
        assert any(words in found["message"][0] for words in refused)


def test_the_flag_reads_what_is_refused_without_it(tmp_path: Path) -> None:
    path = tmp_path / "zeros.npz"
    np.savez_compressed(path, log_probs_new=np.zeros((1, 10**6)), rewards=np.zeros(1))
    refused = run("eval", path, "--unpack", "1M")
    assert refused.exit_code == 3
    flag = refused.stderr.split("--unpack ")[1].split()[0]
    assert "--unpack" not in run("eval", path, "--unpack", flag).stderr


@each("name", ["padded.npz", "rows.parquet", "lines.jsonl.gz"])
def test_the_flag_counts_what_comes_later_too(name: str, tmp_path: Path) -> None:
    """Of several padded arrays, row groups or lines, the first does not decide alone."""
    names = ("log_probs_new", "log_probs_old", "log_probs_ref")
    arrays = dict.fromkeys(names, np.zeros((48, 16))) | {"rewards": np.arange(48.0)}
    np.savez_compressed(tmp_path / "padded.npz", **arrays)
    rows = pa.table({"reward": np.ones(2_500), "log_probs_new": np.zeros(2_500)})
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=250)
    (tmp_path / "lines.jsonl.gz").write_bytes(gzip.compress(b"\n" * 400_000 + b"{}"))
    refused = run("check", tmp_path / name, "--unpack", "128K")
    flag = refused.stderr.split("--unpack ")[1].split()[0]
    assert "--unpack" not in run("check", tmp_path / name, "--unpack", flag).stderr


# ---- what dumps of each format are read as: the files of cases -----------------------------------


CASES = sorted((Path(__file__).parent / "cases").glob("*.txt"))
_MARKS = (">", "!", "=", "~")
_SIGNAL = "reward_mean,groups_equal,length_mean"


@pytest.fixture(scope="module")
def known() -> set[str]:
    """What is said of every file of a format."""
    found = answer("formats")["formats"]
    lacks = {f"note: {one['name']}: {lack}" for one in found for lack in one["lacks"]}
    return lacks | {f"note: read as {one['name']} ({one['title']})" for one in found}


def told(case: list[str], path: Path, known: set[str]) -> list[str]:
    """A case with what comes of it now."""
    flags, lines = shlex.split(case[1].removeprefix("$")), case[2:]
    given = [line for line in lines if not line.startswith(_MARKS)]
    path.write_text("".join(f"{line}\n" for line in given), encoding="utf-8")

    def after(mark: str, text: str) -> list[str]:
        found = [line.removeprefix("grpo: ") for line in text.splitlines()]
        return [f"{mark} {line.replace(str(path), 'x')}" for line in found if line not in known]

    made = run("convert", path, "--on-error", "skip", *flags)
    rows = after(">", made.stdout) + after("!", made.stderr)
    if "nothing can be evaluated" in made.stderr:
        rows += after("~", run("trend", path, "-qf", "jsonl", "--fields", _SIGNAL, *flags).stdout)
    else:
        words = ("-qv", "dr", "--only", "objective", "--on-error", "skip")
        numbers = run("eval", path, *words, *flags)
        faults = [one for one in after("=", numbers.stderr) if not one.startswith("= skipped")]
        rows += after("=", numbers.stdout) + faults
    return [*case[:2], *given, *rows]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_what_is_read(path: Path, tmp_path: Path, known: set[str]) -> None:
    cases = [case.splitlines() for case in path.read_text(encoding="utf-8").split("\n\n")]
    found = [told(case, tmp_path / "x", known) for case in cases]
    if "GRPO_WRITE_CASES" in os.environ:
        path.write_text("\n\n".join("\n".join(case) for case in found) + "\n", encoding="utf-8")
    for case, now in zip(cases, found, strict=True):
        assert now == case
