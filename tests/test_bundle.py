"""Bundles: what real runs recorded replays, plants are named at their stage, changes are errors."""

from __future__ import annotations

import gzip
import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from command import answer, run
from files import each, rows_of

from grpo_cli import verify

SAMPLES = Path(__file__).parent.parent / "samples" / "bundles"
"""Written by ``tests/parity/bundles.py`` of commit 14a7a6f3, where TRL and verl ran."""
KINDS = ("trl", "verl")
REPLAYED = ["rewards", "advantages", "tokens", "loss", "step loss", "metrics"]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


@cache
def runs() -> list[Any]:
    """A generation of TRL's GRPO over two steps of two micro-batches; first as it should be.

    Then with one thing done in another way at one stage (``name``): ``benchmarks/bundles.py`` of
    commit f4bf7df1, a trainer in plain numpy, trained them.
    """
    packed = (Path(__file__).parent / "data/bundles.jsonl.gz").read_bytes()
    return [json.loads(line) for line in gzip.decompress(packed).splitlines()]


def right() -> Any:
    return json.loads(json.dumps(runs()[0]["records"]))


def bundled(records: list[dict[str, Any]], folder: Path) -> Path:
    """The bundle of records, as ``grpo convert`` writes it."""
    plain, path = folder / "plain.jsonl", folder / "step.bundle.jsonl"
    plain.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert run("convert", plain, "--bundle", "-o", path, "-q").exit_code == 0
    return path


def named(path: Path) -> list[str]:
    """The stages that verify says differ."""
    done = run("verify", path, "--json", "-q")
    assert done.exit_code in (0, 1), done.stderr
    answer = json.loads(done.stdout)
    differing = [one["stage"] for one in answer["bundle"]["stages"] if one["differing"]]
    assert answer["bundle"]["first_stage"] == (differing or [None])[0]
    assert done.exit_code == bool(differing)
    return differing


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_run_replays(kind: str) -> None:
    found = answer("verify", SAMPLES / f"{kind}.bundle.jsonl")
    stages = {stage["stage"]: stage for stage in found["bundle"]["stages"]}
    assert found["ok"]
    assert found["bundle"]["first_stage"] is None
    assert all(stages[name]["compared"] for name in REPLAYED)
    assert not any(stage["skipped"] for stage in stages.values())


@pytest.mark.more
def test_faults_are_named_at_their_stage(tmp_path: Path) -> None:
    """Each first at its stage; at least 95 of 100 at no other."""
    found = [(one["stage"], named(bundled(one["records"], tmp_path))) for one in runs()[1:]]
    assert [(stage, stages) for stage, stages in found if stages[:1] != [stage]] == []
    assert sum(len(stages) == 1 for _, stages in found) >= 0.95 * len(found) > 60


def test_a_headline_names_the_stage_where_records_agree(tmp_path: Path) -> None:
    (wrong,) = (one["records"] for one in runs() if one["name"] == "mean")
    path = bundled(wrong, tmp_path)
    assert verify(path).headline == "differs: step loss differs first"


def test_no_fault_is_named_without_one(tmp_path: Path) -> None:
    assert named(bundled(right(), tmp_path)) == []


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


def test_several_bundles_are_replayed_as_each_is() -> None:
    """Each is a piece of the input, as is a part of a large one: what was seen is seen once."""
    found = answer("verify", *sorted(SAMPLES.glob("*.bundle.jsonl")))["bundle"]
    assert (found["records"], found["steps"], len(found["sha256"])) == (8, 4, 2)
    assert found["first_stage"] is None


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


def test_the_advantages_of_trajectories_are_replayed(tmp_path: Path) -> None:
    """Trajectories of several rows count once; advantages by turn are skipped."""
    log_probs = [[-0.5, -0.25], [-1.0], [-0.75], [-0.5]]
    record = {"log_probs_new": log_probs, "rewards": [1.0, 1.0, 0.0, 0.5], "step": 0}
    record |= {"trajectory_ids": ["a", "a", "b", "c"], "turn_rewards": [0.0, 1.0, 0.0, 0.5]}
    record |= {"advantages": [0.5, 0.5, -0.5, 0.0], "expected": {"loss": -0.25}}
    path = tmp_path / "plain.jsonl"
    path.write_text(json.dumps(record) + "\n")
    made = tmp_path / "run.bundle.jsonl"
    assert run("convert", path, "--bundle", "-o", made).exit_code == 0
    stages = []
    for name in ("trajectory-group-mean", "turn-group-mean"):
        found = answer("verify", made, "-v", "dr", "--advantage", name)["bundle"]
        stages += [one for one in found["stages"] if one["stage"] == "advantages"]
    assert (stages[0]["compared"], stages[0]["differing"]) == (4, 0)
    assert "has no advantage per response" in stages[1]["skipped"][0]


def test_a_part_is_replayed_and_says_what_is_skipped() -> None:
    path = SAMPLES / "trl.bundle.jsonl"
    found = answer("verify", path, "--where", "microbatch==1")
    stages = {stage["stage"]: stage for stage in found["bundle"]["stages"]}
    assert found["ok"]
    assert stages["tokens"]["compared"] == 2
    assert "only 4 of the 8 responses of a generation" in stages["advantages"]["skipped"][0]
    assert "only 1 of the 2 micro-batches of step" in stages["step loss"]["skipped"][0]


def test_the_hash_of_a_file_is_not_that_of_a_part() -> None:
    path = SAMPLES / "trl.bundle.jsonl"
    assert answer("verify", path, "--where", "step==0")["bundle"]["sha256"] == []
    assert "(sha256" not in run("verify", path, "--where", "step==1").stdout


def test_a_list_as_expected_is_an_error(tmp_path: Path) -> None:
    made = right()
    made[1]["expected"] = [1.0]
    done = run("verify", bundled(made, tmp_path), "-q")
    assert done.exit_code == 3
    assert "expected: expected an object, got a list" in done.stderr


def test_a_function_that_one_record_lacks_is_not_replayed(tmp_path: Path) -> None:
    made = right()
    del made[1]["rewards/f0"]
    found = answer("verify", bundled(made, tmp_path))
    stages = {stage["stage"]: stage for stage in found["bundle"]["stages"]}
    assert found["ok"]
    assert "one number per reward function" in stages["rewards"]["skipped"][0]


def test_a_key_of_ones_own_is_no_bundle(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    one = {
        "log_probs_new": [[-1.0]],
        "rewards": [1.0],
        "bundle": "mine",
        "expected": {"loss": -0.0},
    }
    path.write_text(json.dumps(one))
    assert "bundle" not in answer("verify", path)


def test_a_table_is_no_bundle(tmp_path: Path) -> None:
    done = run("convert", SAMPLES / "trl.bundle.jsonl", "--bundle", "-o", tmp_path / "x.parquet")
    assert done.exit_code == 2
    assert "--bundle writes JSONL" in done.stderr
