"""Folders and patterns stand for the files of records in them, in natural order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from grpo_cli.errors import InputError
from grpo_cli.records.open.folders import files, natural

RECORD = '{"log_probs": [[-1.0, -2.0], [-0.5]], "advantages": [1.0, -1.0]}\n'


def fill(folder: Path, *names: str) -> list[str]:
    for name in names:
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(RECORD)
    return [str(folder / name) for name in names]


def test_numbers_in_names_count_as_numbers(tmp_path: Path) -> None:
    fill(tmp_path, "step_10.jsonl", "step_9.jsonl", "step_1.jsonl.gz", "step_2/rank_0.json")
    found = [str(Path(one).relative_to(tmp_path)) for one in files([str(tmp_path)])]
    assert found == ["step_1.jsonl.gz", "step_2/rank_0.json", "step_9.jsonl", "step_10.jsonl"]


@pytest.mark.parametrize("names", [("a", "b"), ("1a", "a1"), ("²", "2"), ("x-1", "x-01")])
def test_any_two_names_can_be_compared(names: tuple[str, str]) -> None:
    first, second = map(natural, names)
    assert (first < second) or (second < first) or first == second


@pytest.mark.parametrize(
    "names", [["1", "a"], ["a1", "aa"], ["a9", "a10", "b1"], ["2x", "10"], ["a", "a1"]]
)
def test_numbers_come_before_words(names: list[str]) -> None:
    assert sorted({*names}, key=natural) == names


def test_what_trainers_write_beside_their_dumps_is_left_out(tmp_path: Path) -> None:
    wanted = fill(tmp_path, "rollouts/7.jsonl")
    fill(tmp_path, "checkpoint-5/trainer_state.json", "config.json", "run_metadata.jsonl")
    fill(tmp_path, ".hidden.jsonl", "rollouts/notes.txt", "model-00001-of-2.safetensors")
    assert files([str(tmp_path)]) == wanted


def test_what_has_the_same_rollouts_again_is_left_out(tmp_path: Path) -> None:
    wanted = fill(tmp_path, "rollouts/step_1/train/effective/traces.jsonl")
    fill(tmp_path, "rollouts/step_1/train/all/traces.jsonl")
    fill(tmp_path, "rollouts/step_1/eval/all/traces.jsonl")
    assert files([str(tmp_path)]) == wanted
    alone = fill(tmp_path / "b", "eval/all/traces.jsonl")
    assert files([str(tmp_path / "b")]) == alone


def test_a_pattern(tmp_path: Path) -> None:
    wanted = fill(tmp_path, "steps/2.dump", "steps/10.dump")
    fill(tmp_path, "steps/x.txt")
    assert files([f"{tmp_path}/steps/*.dump"]) == wanted


def test_folders_of_any_depth_and_those_that_are_elsewhere(tmp_path: Path) -> None:
    wanted = fill(tmp_path / "a", "1.jsonl", "b/2.jsonl", "b/c/3.jsonl")
    assert sorted(files([f"{tmp_path}/a/**/*.jsonl"])) == wanted
    (tmp_path / "d").mkdir()
    (tmp_path / "d/link").symlink_to(tmp_path / "a/b")
    found = [str(Path(one).relative_to(tmp_path)) for one in files([str(tmp_path / "d")])]
    assert found == ["d/link/2.jsonl", "d/link/c/3.jsonl"]


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path: Path) -> None:
    assert files(fill(tmp_path, "a[1].jsonl")) == [str(tmp_path / "a[1].jsonl")]


def test_standard_input_and_missing_files_pass(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.jsonl")
    assert files(["-", missing]) == ["-", missing]


@pytest.mark.parametrize(
    ("names", "given", "message"),
    [
        (("a.txt", "b.txt", "c.txt"), "", "found a.txt, b.txt, c.txt)"),
        (("a.txt", "b.txt", "c.txt", "d.txt"), "", "found a.txt, b.txt, c.txt, …)"),
        ((), "", "is an empty folder"),
        (("a.txt", "b.log"), "", "no file of records in this folder (looked for .jsonl, .ndjson"),
        (("config.json",), "", "found config.json)"),
        (("a.jsonl",), "/*.csv", "no file fits this pattern"),
    ],
)
def test_nothing_to_read(names: tuple[str, ...], given: str, message: str, tmp_path: Path) -> None:
    fill(tmp_path, *names)
    with pytest.raises(InputError) as caught:
        files([f"{tmp_path}{given}"])
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_the_commands_read_folders(tmp_path: Path) -> None:
    fill(tmp_path, "run/2.jsonl", "run/10.jsonl")
    command = [sys.executable, "-m", "grpo_cli", "eval", "run", "-p", "beta=0", "--only", "source"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["run/2.jsonl", "run/10.jsonl"], done.stderr
    (tmp_path / "none").mkdir()
    command[4] = "none"
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "grpo: none: is an empty folder\n")
