"""Bundles: recorded runs agree, every command reads their records, and changes are errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command import answer, run
from files import each, rows_of

SAMPLES = Path(__file__).parent.parent / "samples" / "bundles"
KINDS = ("trl", "verl")


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_run_agrees(kind: str) -> None:
    path = SAMPLES / f"{kind}.bundle.jsonl"
    assert answer("verify", path)["ok"]
    assert answer("verify", path, "--where", "microbatch==1")["ok"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_bundle_evaluates_to_the_same_bytes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, sealed = tmp_path / "plain", tmp_path / "sealed"
    plain.mkdir()
    sealed.mkdir()
    made = [json.loads(line) for line in lines(SAMPLES / f"{kind}.bundle.jsonl")]
    for one in made:
        del one["bundle"]
    (plain / "run.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in made))
    assert (
        run("convert", plain / "run.jsonl", "--bundle", "-o", sealed / "run.jsonl").exit_code == 0
    )
    assert run("verify", sealed / "run.jsonl").exit_code == 0
    for flags in ((), ("--level", "token"), ("-v", "dapo", "--batch", "step")):
        outputs = []
        for folder in (plain, sealed):
            monkeypatch.chdir(folder)
            done = run("eval", "run.jsonl", "--json", *flags)
            outputs.append((done.exit_code, done.stdout, done.stderr))
        assert outputs[0] == outputs[1]


def test_a_bundle_that_nothing_can_be_verified_of_says_so(tmp_path: Path) -> None:
    path = tmp_path / "plain.jsonl"
    path.write_text('{"log_probs_new": [[-0.5], [-0.7]], "rewards": [1.0, 0.0]}\n')
    done = run("convert", path, "--bundle", "-o", tmp_path / "run.jsonl")
    assert (done.exit_code, 'no record has "expected"' in done.stderr) == (0, True)
    assert run("verify", tmp_path / "run.jsonl").exit_code == 3


def test_any_jobs_give_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "run.bundle.jsonl"
    for jobs in (1, 2):
        other = tmp_path / f"{jobs}.jsonl"
        source = SAMPLES / "trl.bundle.jsonl"
        assert run("convert", source, "--bundle", "-o", other, "--jobs", jobs).exit_code == 0
    assert (tmp_path / "1.jsonl").read_bytes() == (tmp_path / "2.jsonl").read_bytes()
    shutil.copy(tmp_path / "1.jsonl", path)
    found = [run("verify", path, "--json", "--jobs", jobs).stdout for jobs in (1, 2)]
    assert found[0] == found[1]


CHANGED = rows_of(Path(__file__).parent / "data/changed_bundles.csv")
"""A change of the lines of a file, as an expression of ``texts``, and what is said of it."""


@each("changed", CHANGED, ids=lambda changed: changed["name"])
def test_a_changed_file_is_one_plain_line(changed: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "run.bundle.jsonl"
    assert run("convert", SAMPLES / "trl.bundle.jsonl", "--bundle", "-o", path).exit_code == 0
    texts = eval(changed["change"], {"texts": lines(path)})
    path.write_text("".join(f"{line}\n" for line in texts))
    done = run("verify", path, "-q")
    assert done.exit_code == 3, (done.stdout, done.stderr)
    assert changed["said"] in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_a_key_of_ones_own_is_no_bundle(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    one = {
        "log_probs_new": [[-1.0]],
        "rewards": [1.0],
        "bundle": "mine",
        "expected": {"loss": -0.0},
    }
    path.write_text(json.dumps(one))
    assert answer("verify", path)["ok"]


def test_a_table_is_no_bundle(tmp_path: Path) -> None:
    done = run("convert", SAMPLES / "trl.bundle.jsonl", "--bundle", "-o", tmp_path / "x.parquet")
    assert done.exit_code == 2
    assert "--bundle writes JSONL" in done.stderr
