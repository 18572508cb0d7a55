"""The formats that ``grpo formats`` lists: each has its cases; one has settings in a header."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import answer, run

from formats import dumps
from formats.dumps import lines


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
        assert notes[: 1 + len(lacks)] == [f"grpo: note: read as {name} ({about['title']})", *lacks]


@pytest.mark.parametrize("name", ["nemo-rl", "canonical", "prime-rl"])
def test_insisting(tmp_path: Path, name: str) -> None:
    path = tmp_path / "dump.jsonl"
    path.write_bytes(lines(dumps.prime_rl()))
    result = run("convert", path, "--from", name)
    said = {
        "nemo-rl": "this does not look like NeMo-RL train_data_step{N}.jsonl",
        "canonical": "importance_ratio: unknown key",
        "prime-rl": "read as prime-rl",
    }
    assert said[name] in result.stderr
    assert (result.exit_code == 0) == (name == "prime-rl")


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("array", [False, True])
def test_the_header_of_unipo_reaches_its_steps(tmp_path: Path, jobs: int, array: bool) -> None:
    """Wherever the file is cut; a step's own settings win, and flags win over both."""
    header, step = dumps.unipo_lines()
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


@pytest.mark.parametrize(
    "first", ['{"type":"header"}', '{"type":"step","hparams":1,"x":"header"}', '{"hparams":1}']
)
def test_what_is_no_header_changes_nothing(tmp_path: Path, first: str) -> None:
    path, record = tmp_path / "run.jsonl", {"log_probs_new": [[-1.0]], "rewards": [1]}
    path.write_text(f"{first}\n{json.dumps({'type': 'step', **record})}\n")
    made = run("convert", path, "--on-error", "skip").stdout.splitlines()
    assert json.loads(made[-1]) == {"id": 1, "type": "step", **record}
