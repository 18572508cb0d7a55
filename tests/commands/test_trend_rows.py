"""Runs whose rows hold one response each: their groups, and reward that rises with length."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from command import answer, run
from files import some
from trended import blocks, write

import grpo_cli

pytestmark = pytest.mark.more

ON = 20


def rows(
    steps: int = 40, *, longer: float = 0.0, paid: float = 0.0, seed: int = 3
) -> list[dict[str, Any]]:
    """Rows of two prompts that come back at each step, with given advantages.

    From step ``ON`` on responses are longer by ``longer`` a step, each token of which is ``paid``.
    """
    draw, made = random.Random(seed), []
    for step in range(steps):
        late = max(step - ON + 1, 0)
        for prompt in "pq":
            for _ in range(6):
                length = draw.randint(10, 20) + int(longer * late)
                reward = draw.choice((0.0, 1.0)) + paid * length * bool(late)
                made.append(
                    {
                        "global_step": step,
                        "prompt_id": prompt,
                        "log_probs": [-draw.uniform(0.5, 1.5) for _ in range(length)],
                        "reward": reward,
                        "advantage": draw.choice((-1.0, 1.0)),
                    }
                )
    return made


def test_what_is_ungrouped_is_said_alike(tmp_path: Path) -> None:
    """The hint has the file's own keys; the page counts groups as the metrics do."""
    path, page = write(tmp_path / "run.jsonl", rows(6)), tmp_path / "run.html"
    hint = (
        "each record is a group of its own, with its given advantage; "
        "--group-by global_step,prompt_id joins them"
    )
    for words in (("eval", path), ("trend", path), ("report", path, "-o", page)):
        assert " ".join(run(*words).output.split()).count(hint) == 1, words
    assert "--group-by global_step,prompt_id joins" in run("check", path).stdout
    head = blocks(page.read_text(encoding="utf-8"))["run"]
    assert head["alone"] == hint
    groups = head["groups"]["3"]
    assert {one["group"] for one in groups if one["labelled"]} == {"p", "q"}
    joined = "--group-by", "global_step,prompt_id"
    for words in (("eval", path), ("trend", path), ("report", path, "-o", page)):
        assert "group of its own" not in run(*words, *joined).stderr


@pytest.mark.parametrize("seed", some([7, 10, 12], 1))  # each some steps later without it
def test_against_names_the_step_of_trend(tmp_path: Path, seed: int) -> None:
    """The difference of two noisy runs may show a change later than the run that changed."""
    first = write(tmp_path / "a.jsonl", rows())
    second = write(tmp_path / "b.jsonl", rows(longer=1.4, seed=seed))
    alone = next(
        one for one in answer("trend", second)["findings"] if one["metric"] == "length_mean"
    )
    both = answer("trend", first, "--against", second)["metrics"]
    assert next(one["since"] for one in both if one["name"] == "length_mean") == alone["onset"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_ids_of_verl_say_that_a_row_is_one_response(tmp_path: Path, kind: str) -> None:
    row = {
        "uid": "u",
        "responses": [4, 5, 6],
        "response_mask": [1, 1, 1],
        "old_log_probs": [-1.0, -1.5, -0.5],
        "log_prob": [-1.1, -1.4, -0.5],
        "advantages": [0.5, 0.5, 0.5],
    }
    path: Any = write(tmp_path / "rows.jsonl", [row, row | {"advantages": [-0.5] * 3}])
    if kind == "parquet":
        pq = pytest.importorskip("pyarrow.parquet")
        pa = pytest.importorskip("pyarrow")
        path = tmp_path / "rows.parquet"
        pq.write_table(pa.Table.from_pylist([row, row | {"advantages": [-0.5] * 3}]), path)
    total = answer("eval", path)["total"]
    assert (total["responses"], total["tokens"]) == (2, 6)


def test_rewards_of_every_row_of_a_group_count(tmp_path: Path) -> None:
    """Of rows without log-probs too, however they are grouped; means by hand."""
    scores = {0: [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]], 1: [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]}
    rows = [
        {"step": step, "uid": f"q{at}", "input": f"q{at}", "output": "r", "gts": "1", "score": one}
        for step, groups in scores.items()
        for at, group in enumerate(groups)
        for one in group
    ]
    path = write(tmp_path / "rows.jsonl", rows)
    for words in ((), ("--group-by", "step,uid"), ("--group-size", "3")):
        steps = answer("trend", path, *words)["steps"]
        assert [one["reward_mean"] for one in steps] == pytest.approx([3 / 6, 1 / 6])
        assert [one["groups_equal"] for one in steps] == [0.0, 0.5]
    found = grpo_cli.trend(rows, group_by=["step", "uid"])
    assert [one.reward_mean for one in found.steps] == pytest.approx([3 / 6, 1 / 6])
    error = run("trend", path, "--group-by", "uid").stderr
    assert "--group-by step,uid separates steps" in error


@pytest.mark.parametrize(("more", "most"), [((), 12), (("--full",), 40), (("--top", "0"), 40)])
def test_steps_that_are_printed_unasked(tmp_path: Path, more: tuple[str, ...], most: int) -> None:
    path = write(tmp_path / "run.jsonl", rows())
    lines = run("trend", path, *more).stdout.splitlines()
    steps = [line.split()[0] for line in lines if re.match(r" *\d+  ", line)]
    assert (len(steps), steps[0], steps[-1]) == (most, "0", "39")
