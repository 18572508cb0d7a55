"""Questions about a run: ``grpo trend --at``, ``--by``; the truth is in how the run is made."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import answer, run
from files import each
from trended import write

CASES = Path(__file__).parent / "cases" / "trend_questions.txt"
BROKEN_RANK, SINCE, STEPS = 2, 26, 40
FORGOTTEN = "p3"


def records() -> Iterator[dict[str, Any]]:
    """A run of four ranks: the engine of one drifts away, and one prompt is forgotten."""
    draw = random.Random(3)
    for step in range(STEPS):
        for rank in range(4):
            size = 0.3 if rank == BROKEN_RANK and step >= SINCE else 0.01
            prompt = f"p{(step * 4 + rank) % 8}"
            right = 0.05 if prompt == FORGOTTEN and step >= SINCE else 0.8
            old = [[-draw.expovariate(1.0) - 0.3 for _ in range(8)] for _ in range(6)]
            moved = {
                name: [
                    [round(min(one + draw.gauss(0, far), -1e-3), 6) for one in row] for row in old
                ]
                for name, far in (("log_probs_new", 0.05), ("log_probs_rollout", size))
            }
            rewards = [float(draw.random() < right) for _ in range(6)]
            old = [[round(one, 6) for one in row] for row in old]
            where = {"id": f"{step}-{rank}", "step": step, "meta": {"rank": rank}, "prompt": prompt}
            yield where | moved | {"log_probs_old": old, "rewards": rewards}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("questions")
    write(made / "run.jsonl", records())
    return made


def test_screens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``cases/trend_questions.txt``: commands and what they print; ``GRPO_WRITE_CASES=1``."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    text = CASES.read_text(encoding="utf-8") if CASES.exists() else ""
    commands = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
    found = []
    for line in commands:
        result = run(*line.split()[1:])
        found.append(f"$ {line}\n{result.stdout}{result.stderr}[{result.exit_code}]\n")
    if "GRPO_WRITE_CASES" in os.environ:
        CASES.write_text("\n".join(found), encoding="utf-8")
    assert "\n".join(found) == text


def test_at_agrees_with_the_run(folder: Path) -> None:
    path, words = folder / "run.jsonl", ("-v", "dr")
    steps = answer("trend", path, *words)["steps"]
    found = answer("trend", path, *words, "--at", SINCE)
    by_name = {one["name"]: one for one in found["metrics"]}
    assert all(by_name[name]["at"] == steps[SINCE][name] for name in by_name)
    before = sorted(one["mismatch.k3"] for one in steps[:SINCE])
    assert by_name["mismatch.k3"]["before"] == (before[12] + before[13]) / 2
    assert found["check"] == answer("check", path, "--where", f"step=={SINCE}")
    assert found["worst"] == steps[SINCE]["worst"]
    assert {one["record"] for one in found["groups"] if "mismatch" in one["worst_in"]} == {
        f"{SINCE}-{BROKEN_RANK}"
    }


def test_the_part_that_carries_a_change(folder: Path) -> None:
    found = answer("trend", folder / "run.jsonl", "-v", "dr", "--by", "meta.rank")
    first = [one for one in found["changes"] if one["metric"] == "mismatch.k3"]
    assert {one["step"] for one in first} == {SINCE}
    assert first[0]["part"] == BROKEN_RANK
    assert first[0]["share"] == pytest.approx(1.0, abs=0.02)
    assert sum(one["share"] for one in first) == pytest.approx(1.0, abs=1e-9)
    assert all(abs(one["size"]) < 4 for one in first[1:])


def test_the_prompt_that_was_forgotten(folder: Path) -> None:
    found = answer("trend", folder / "run.jsonl", "-v", "dr", "--by", "prompt")
    assert [one["part"] for one in found["fell"]] == [FORGOTTEN]
    assert found["fell"][0]["since"] >= SINCE


ERRORS = [
    (("--at", "99"), 2, "no such step in 0 to 39; the nearest is 39"),
    (("--by", "meta.rnk"), 3, "meta.rnk: missing; --batch and --by need it in every record"),
    (("--by", "meta"), 3, "expected a number or text (--batch, --by), got an object"),
]


@each(("words", "code", "message"), ERRORS)
def test_errors(folder: Path, words: tuple[str, ...], code: int, message: str) -> None:
    result = run("trend", folder / "run.jsonl", "-v", "dr", *words)
    assert result.exit_code == code
    assert message in result.stderr
