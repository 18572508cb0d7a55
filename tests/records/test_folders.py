"""Folders and patterns stand for the files of records in them, in natural order."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import run

RECORD = '{"log_probs": [[-1.0, -2.0], [-0.5]], "advantages": [1.0, -1.0]}\n'


def files(paths: list[str]) -> list[str]:
    """The files that are read, in their order."""
    result = run("eval", *paths, "-qp", "beta=0", "--only", "source")
    assert result.exit_code == 0, result.stderr
    return result.stdout.splitlines()


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


@pytest.mark.parametrize(
    "names",
    [["1", "a"], ["a1", "aa"], ["a9", "a10", "b1"], ["2x", "10"], ["2", "²"]],
)
def test_numbers_come_before_words(names: list[str], tmp_path: Path) -> None:
    wanted = fill(tmp_path, *(f"{name}/x.jsonl" for name in names))
    assert files([str(tmp_path)]) == wanted


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


@pytest.mark.parametrize(
    ("names", "given", "message"),
    [
        (("a.txt", "b.txt", "c.txt"), "", "found a.txt, b.txt, c.txt)"),
        (("a.txt", "b.txt", "c.txt", "d.txt"), "", "found a.txt, b.txt, c.txt, …)"),
        ((), "", "is an empty folder"),
        (("a.txt", "b.log"), "", "this folder has no file of records (looked for .jsonl, .ndjson"),
        (("config.json",), "", "found config.json)"),
        (("a.jsonl",), "/*.csv", "no file matches this pattern"),
    ],
)
def test_nothing_to_read(names: tuple[str, ...], given: str, message: str, tmp_path: Path) -> None:
    fill(tmp_path, *names)
    result = run("eval", f"{tmp_path}{given}")
    assert result.exit_code == 3
    assert message in result.stderr
    assert str(tmp_path) in result.stderr
