"""``grpo trend``: which step and which run records are of, and what is noted of a run."""

from __future__ import annotations

import random
import shlex
from pathlib import Path
from typing import Any

import pytest
from command import answer, run
from files import each, in_blocks
from trended import PLAIN, notes, steps, write

pytestmark = pytest.mark.more


def numbers(*words: object) -> list[int]:
    return [one["step"] for one in steps(*words)]


# ---- which step ---------------------------------------------------------------------------------


@each(
    ("source", "step"),
    [
        ("run/step_12/rank_3.jsonl", 12), ("run/12.jsonl.zst", 12), ("train_data_step7.jsonl", 7),
        ("rollouts/rollout_3.rank1.jsonl", 3), ("completions_00005.jsonl", 5),
        ("global_step_40/dump.jsonl", 40), ("step_1/step_20.jsonl", 20),
        ("dump.rank3.jsonl", None), ("rank_0.jsonl", None), ("rollouts.jsonl", None),
    ],
)  # fmt: skip
def test_the_step_of_a_name(
    source: str, step: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path(source.removesuffix(".zst")), [PLAIN])
    if step is None:
        assert "the step is missing" in run("trend", source, "-v", "dr").stderr
    else:
        assert numbers(source.removesuffix(".zst")) == [step]


@each(
    ("fields", "step"),
    [
        ({"step": 3}, 3), ({"global_step": 4.0}, 4), ({"step": "05"}, 5),
        ({"meta": {"step": 6}}, 6),
        ({"iter": 3, "it": 4}, 3), ({"it": 4}, 4),
        ({"step": True, "iteration": 2}, 2), ({"step": 1, "global_step": 9}, 1), ({}, 77),
        ({"step": -(2**63)}, -(2**63)), ({"step": 2**63 - 1}, 2**63 - 1),
    ],
)  # fmt: skip
def test_the_step_of_a_record(fields: dict[str, Any], step: int, tmp_path: Path) -> None:
    assert numbers(write(tmp_path / "77.jsonl", [PLAIN | fields])) == [step]


def test_the_step_that_is_asked_for(tmp_path: Path) -> None:
    rows = (PLAIN | {"step": 9, "at": {"update": [0, n]}} for n in (4, 2))
    path = write(tmp_path / "a.jsonl", rows)
    other = write(tmp_path / "b.jsonl", [PLAIN | {"step": 9}])
    assert numbers(path, "--step", "at.update[1]") == [2, 4]
    assert numbers(other, path, "--step", "file") == [0, 1]


@each(
    ("fields", "flags", "said"),
    [
        ({}, (), "a.jsonl:2: the step is missing: no field (step, global_step, training_step, …) "
         "and no number in the file name"),
        ({"step": 1}, ("--step", "when"),
         "a.jsonl:1: when: expected the step, a whole number"),
        *(({"step": step}, (), "a.jsonl:2: expected a step of at most 64 bits, got ")
          for step in (2**63, 2**70, 1e300, "9" * 5000)),
    ],
)  # fmt: skip
def test_a_record_that_no_number_is_found_for(
    fields: dict[str, Any], flags: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.jsonl", [PLAIN | {"step": 1}, PLAIN | fields])
    result = run("trend", path, *flags)
    assert (result.exit_code, said in result.stderr) == (3, True)


# ---- which run ----------------------------------------------------------------------------------


@each(
    ("first", "second", "same"),
    [
        ("a/step_1/rank_0.jsonl", "a/step_1/rank_1.jsonl", True),
        ("a/step_1/maths/x.jsonl", "a/step_1/code/x.jsonl", True),
        ("a/rank_0.jsonl", "a/rank_1.jsonl", True),
        ("a/dump-00000-of-00002.jsonl", "a/dump-00001-of-00002.jsonl", True),
        ("a/dump_0.jsonl", "a/dump_1.jsonl", True),
        ("a/data_20260101_000000_0.jsonl", "a/data_20260101_000100_1.jsonl", True),
        ("a/9f0c2b1e-77aa-4c1d-9e55-0d1c2b3a4f5e.jsonl", "a/11112222-3333.jsonl", True),
        ("a/run.jsonl", "a/run.1.jsonl", True),
        ("a/seed1.jsonl", "a/seed2.jsonl", False),
        ("a/run_1.jsonl", "a/run_2.jsonl", False),
        ("a/x.maths.jsonl", "a/x.code.jsonl", False),
        ("a/0/dump.jsonl", "a/1/dump.jsonl", False),
        ("a/1.jsonl", "b/1.jsonl", False),
        ("a/x_step1.jsonl", "a/y_step1.jsonl", False),
        ("a/healthy.jsonl", "a/temperature.jsonl", False),
        ("seed_1/step_1/0.jsonl", "seed_2/step_1/0.jsonl", False),
    ],
)
def test_the_run_of_a_name(first: str, second: str, same: bool, tmp_path: Path) -> None:
    for name in (first, second):
        write(tmp_path / name, [PLAIN | {"step": 1}])
    result = run("trend", tmp_path / first, tmp_path / second, "-v", "dr")
    found = (result.exit_code, "both have step 1" in result.stderr)
    assert found == ((0, False) if same else (2, True))
    assert numbers(tmp_path / first, tmp_path / second, "--one-run") == [1]


def test_two_runs_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [PLAIN | {"step": step, "rewards": [step, 0.0]} for step in range(3)]
    for name in "ab":
        for step in range(3):
            write(tmp_path / name / f"{step}.jsonl", [rows[step]] * 3)
    for size, jobs in ((1 << 22, 1), (1 << 22, 2), (200, 1)):
        in_blocks(monkeypatch, size)
        result = run("trend", tmp_path, "-v", "dr", "--jobs", jobs)
        assert "both have step 0, so these are 2 runs. Which metrics differ: " in result.stderr
        assert f"grpo trend {tmp_path}/b --against {tmp_path}/a; " in result.stderr
        assert f"grpo trend {tmp_path}/a; grpo trend {tmp_path}/b; " in result.stderr
    together, alone = steps(tmp_path, "--one-run"), steps(tmp_path / "a")
    assert [one["reward_mean"] for one in together] == [one["reward_mean"] for one in alone]
    for name in ("b/0", "b/1", "a/2"):
        (tmp_path / f"{name}.jsonl").unlink()
    assert numbers(tmp_path) == [0, 1, 2]  # one that went on elsewhere


@each(
    ("files", "places"),
    [
        (["x/run_1.jsonl", "x/run_2.jsonl"], ["x/run_1.jsonl", "x/run_2.jsonl"]),
        (["a/step_1.jsonl", "b/step_1.jsonl", "a/step_2.jsonl"], ["a", "b/step_1.jsonl"]),
        (["x/a_step1.jsonl", "x/b_step1.jsonl", "x/a_step2.jsonl"], ["'x/a_*'", "x/b_step1.jsonl"]),
        (["a/step_1.jsonl", "b/step_1.jsonl", "c/step_9.jsonl"],
         ["a/step_1.jsonl", "b/step_1.jsonl", "c/step_9.jsonl"]),
        ([f"{name}/step_1.jsonl" for name in "abcde"], [f"{n}/step_1.jsonl" for n in "abcde"]),
        (["a/step_1/0.jsonl", "b/step_1/0.jsonl", "a/step_2/x/y.jsonl"], ["a", "b/step_1/0.jsonl"]),
    ],
)  # fmt: skip
def test_what_two_runs_are_called(
    files: list[str], places: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the only file; by the folder, where no other run is in it; else by a pattern."""
    monkeypatch.chdir(tmp_path)
    for name in files:  # the same names in several cases have the same records
        write(Path(name), [PLAIN if "step" in name else PLAIN | {"step": 1}])
    more = f"; … {len(places) - 3} more" if len(places) > 3 else ""
    two = ""
    if len(places) == 2:
        a, b = places
        two = f"Which metrics differ: grpo trend {b} --against {a}; where they first differ: "
        two += f"grpo diff {a} {b}. "
    each = "; ".join(f"grpo trend {place}" for place in places[:3])
    assert run("trend", *files, "-v", "dr").stderr == (
        f"grpo: {files[0]} and {files[1]} both have step 1, so these are {len(places)} runs. "
        f"{two}For each run: {each}{more}; if they are parts of one run, add --one-run\n"
    )


# ---- what is noted ------------------------------------------------------------------------------


@each(
    ("numbers", "first"),
    [
        ([0, 1, 2, 1, 2, 3], None),  # by one: neighbours mix
        ([0, 1, 2, 0, 1], (4, 2, 0)),
        ([5, 3, 4, 5, 6, 4, 5], (2, 5, 3)),
        ([9, 7, 5, 3], (2, 9, 7)),
        ([19, 17, 15, 13, 11, 9, 7, 5, 3], None),  # more often than three times: in no order
        (random.Random(0).sample([*range(8)] * 4, 32), None),
        ([3, 3, 2, 4, 2], (5, 4, 2)),
    ],
)
def test_where_the_steps_of_a_file_go_back(
    numbers: list[int], first: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the file is cut."""
    path = write(tmp_path / "a.jsonl", [PLAIN | {"step": number} for number in numbers])
    for size in (1 << 22, 1, 200):
        in_blocks(monkeypatch, size)
        told = notes(path, "--jobs", "1")
        assert len(told) == (first is not None)
        for said in told:
            line, high, to = first
            assert said.startswith(f"{path}:{line}: the steps go back from {high} to {to}: the run")


def test_a_trend_that_takes_records_as_on_policy_says_so(tmp_path: Path) -> None:
    """And not where the ratio is one against the engine, which needs no log_probs_old."""
    note = "note: log_probs_old is missing: assuming on-policy (old = new), so every ratio is 1"
    row = {"log_probs": [[-0.9, -0.2], [-1.1]], "log_probs_rollout": [[-0.9, -0.2], [-1.2]]}
    row |= {"rewards": [1.0, 0.0]}  # type: ignore[dict-item]
    path = write(tmp_path / "a.jsonl", [row | {"step": 1}, row | {"step": 2}])
    for flags, told in (((), True), (("--ratio", "rollout"), False)):
        for name in ("trend", "eval"):
            assert (note in run(name, path, "-v", "dr", *flags).stderr) == told, (name, flags)


# ---- the commands of a step ---------------------------------------------------------------------


def command_of(path: Path, step: int, *flags: object) -> str:
    """The command for a step at which ``rewards/x`` begins to be another number."""
    every = answer("trend", path, "-v", "dr", *flags)["findings"]
    (finding,) = [one for one in every if one["metric"] == "rewards/x/mean"]
    assert finding["onset"] == step
    found: str = finding["command"]
    return found


def prime_rl(step: int) -> dict[str, Any]:
    row: dict[str, Any] = {"trainer_logprobs": [-1.0], "inference_logprobs": [-1.0]}
    return row | {"loss_mask": [True], "token_ids": [5], "advantages": [1.0], "export_step": step}


def slime(step: int) -> dict[str, Any]:
    sample = {"tokens": [1, 2], "response_lengths": 1, "log_probs": [-1.0], "rewards": 1.0}
    return {"rollout_id": step, "samples": [sample | {"advantages": [1.0], "loss_masks": [1]}]}


@each(
    ("made", "flags", "field"),
    [
        (lambda step: PLAIN | {"global_step": step, "step": "warm-up"}, (), "global_step"),
        (lambda step: PLAIN | {"meta": {"train_step": step}}, (), "meta.train_step"),
        (lambda step: PLAIN | {"step": 7, "at": [str(step)]}, ("--step", "at[0]"), "at[0]"),
    ],
)
def test_the_commands_of_a_step_name_the_field_that_says_it(
    made: Any, flags: Any, field: str, tmp_path: Path
) -> None:
    """They are run, and read the records of that step; of a file a step, they name the file."""
    rows = [made(at) | {"rewards/x": [at % 7 / 100 + 5 * (at > 19)]} for at in range(40)]
    path = write(tmp_path / "run.jsonl", [row for row in rows for _ in range(2)])
    words = shlex.split(command_of(path, 20, *flags), comments=True)
    assert words[2:5] == [str(path), "--where", f"{field}==20"]
    assert answer(*words[1:], "--level", "batch")["total"]["records"] == 2
    for at, row in enumerate(rows):
        write(tmp_path / "steps" / f"step_{at}.jsonl", [row] * 2)
    words = shlex.split(command_of(tmp_path / "steps", 20, *flags), comments=True)
    file = str(tmp_path / "steps" / "step_20.jsonl")
    assert words == ["grpo", "eval", file, "--level", "response", "-v", "dr"]


@each(("made", "field"), [(prime_rl, "export_step"), (slime, "rollout_id")])
def test_the_field_of_other_frameworks_dumps(made: Any, field: str, tmp_path: Path) -> None:
    """A limit of a single step is passed, which names the step's records by their field."""
    path = write(tmp_path / "run.jsonl", [made(step) for step in (1, 2, 2, 3)])
    assert numbers(path) == [1, 2, 3]
    found = answer("eval", path, "-v", "dr", "--where", f"{field}==2", "--level", "batch")
    assert found["total"]["records"] == 2


def test_the_commands_of_a_step_put_rows_together_as_trend_did(tmp_path: Path) -> None:
    """Rows of a response each: the flags that made groups of them go along, and those alone."""
    rows = [
        {"step": step, "uid": uid, "log_probs": [-1.0], "env": env,
         "reward": reward, "rewards/x": [step % 7 / 100 + 5 * (step > 19)]}
        for step in range(40)
        for env, uid in (("math", 0), ("code", 1))
        for reward in (0.0, 1.0)
    ]  # fmt: skip
    path = write(tmp_path / "run.jsonl", rows)
    flags = ("--group-by", "step,uid", "--group-anywhere", "--where", "env==math")
    words = shlex.split(command_of(path, 20, *flags, "--on-error", "skip"), comments=True)
    kept = ["--group-by", "step,uid", "--where", "env==math", "--group-anywhere"]
    assert words[-len(kept) - 2 :] == ["-v", "dr", *kept]
    found = answer(*words[1:], "--level", "batch")
    assert (found["total"]["groups"], found["total"]["responses"]) == (1, 2)
    assert found["variant"] == "dr"


def test_files_that_differ_by_a_number_and_share_their_steps_are_two_runs(tmp_path: Path) -> None:
    """Not those of ranks, nor a file that goes on where the other ended."""

    def files(second: str, first_step: int) -> list[Path]:
        folder = tmp_path / f"{second}{first_step}"
        named = (("rank0" if "rank" in second else "a", 0), (second, first_step))
        return [
            write(folder / f"{name}.jsonl", (PLAIN | {"step": at + begin} for at in range(8)))
            for name, begin in named
        ]

    for second, begin, code in (("a2", 0, 2), ("a2", 7, 0), ("rank1", 0, 0)):
        result = run("trend", *files(second, begin), "-v", "dr")
        assert result.exit_code == code, result.stderr
        assert ("so these are 2 runs" in result.stderr) == (code == 2)
        both = run("compare", *files(second, begin)).stderr
        assert ("compared as two runs" in both) == (code == 2)
