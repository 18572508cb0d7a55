"""What a run's numbers say of why it changed: a fault at step 24 of 44, planted in every column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import run
from files import each
from trended import COLUMNS, GROUPS, STEP, STEPS, healthy, trend, write, written

from grpo_cli.commands.trend.events import events
from grpo_cli.commands.trend.onsets import SHIFT, SPIKE
from grpo_cli.commands.trend.step import Finding, Steps
from grpo_cli.commands.trend.sums import StepSums

pytestmark = pytest.mark.more


def test_check_of_a_step_pools_its_records(tmp_path: Path) -> None:
    """An update sharpens the shortest prompt of each step; at 24 all responses become shorter.

    From there on the mask counts padding in a record that is the worst in nothing.
    """
    draw = np.random.default_rng(5)

    def row(step: int, group: int) -> dict[str, Any]:
        late = step >= STEP
        tokens = (20 if late else 40) - 2 * (group == 0)
        odds = draw.exponential(3.0, (8, tokens)) + 0.5
        old, new = (-np.log1p(np.exp(-x)) for x in (odds, (1.0 + 0.5 * (group == 0)) * odds))
        ids = draw.integers(10, 90, (8, tokens))
        if late and group == 5:
            old[:, 14:] = new[:, 14:] = -1e-4
            ids[:, 13:] = 7
        made = {"step": step, "id": f"{step}/{group}", "rewards": draw.integers(0, 2, 8).tolist()}
        columns = {"log_probs_new": new, "log_probs_old": old, "token_ids": ids}
        return made | {name: column.tolist() for name, column in columns.items()}

    rows = [row(step, group) for step in range(STEPS) for group in range(6)]
    (event,) = trend(write(tmp_path / "a.jsonl", rows))["events"]
    assert event["step"] == STEP
    assert not any("temperature" in line for line in event["check"])
    assert any("padding" in line for line in event["check"])


@each(("drawn", "words"), [
    (False, "step 24: log_probs_ref of the first tokens of known prompts changed; likely: the "),
    (True, "no fault found in "),
])  # fmt: skip
def test_a_reference_that_moves_first_tokens_was_replaced(
    drawn: bool, words: str, tmp_path: Path
) -> None:
    """The KL hardly shows it; ids of records may be of other prompts at each step."""
    draw = np.random.default_rng(5)
    firsts = -draw.exponential(0.7, (2, STEPS, GROUPS, 3)) - 0.01
    rows, ids = healthy(), draw.integers(0, 3, (STEPS, GROUPS, 8))
    for step, now in enumerate(rows):
        of = firsts[:, step * drawn, np.arange(GROUPS)[:, None], ids[step]]
        for name in COLUMNS:
            now[name][..., 0] = of[int(name == "ref" and step >= STEP and not drawn)]

    def tokens(step: int, group: int) -> list[list[int]]:
        return [[one, *range(10, 25)] for one in ids[step, group].tolist()]

    path = written(
        tmp_path / "a.jsonl", rows, id=lambda step, group: group, token_ids=tokens
    )  # fmt: skip
    found = trend(path, "-v", "grpo")
    assert found["verdict"].startswith(words)
    moved = [step["ref_moved"] for step in found["steps"]]
    assert moved[0] is None
    assert moved[1] == (pytest.approx(0.7, abs=0.5) if drawn else 0.0)


def test_a_second_prompt_without_rewards_is_counted(tmp_path: Path) -> None:
    """Though there are seven steps of it before, and its series is short."""
    rows = healthy()
    for now in rows[STEP:]:
        now["rewards"][2:4] = 0.0
    for now in rows[:STEP]:
        now["rewards"][3, :2] = 0.0, 1.0

    def names(step: int, group: int) -> str:
        return f"p{group}" if group != 3 or step >= STEP - 7 else f"other {step}"

    verdict = trend(written(tmp_path / "a.jsonl", rows, id=names), "-v", "grpo")["verdict"]
    assert verdict.startswith("step 24: the rewards fell at 2 prompts; ")


@each(("text", "name"), [
    ("what is {}+{}?", "what is 2+2?"),
    ("solve this:\n" + 9 * "x" + " + {} = {}" + 40 * ".", "solve this: xxxxxxxxx + 2 = 2"),
])  # fmt: skip
def test_the_text_of_a_prompt_is_its_name(text: str, name: str, tmp_path: Path) -> None:
    """Where rows are grouped by their step and it; their group has another name at each step."""
    rows = healthy()
    for now in rows[STEP:]:
        now["rewards"][2] = 0.0
    path = write(tmp_path / "a.jsonl", (
        {"step": step, "prompt": text.format(group, group)}
        | {"rewards": now["rewards"][group][at]}
        | {f"log_probs_{name}": now[name][group][at].tolist() for name in COLUMNS}
        for step, now in enumerate(rows)
        for group in range(GROUPS)
        for at in range(8)
    ))  # fmt: skip
    found = trend(path, "-v", "grpo", "--group-by", "step,prompt")
    assert found["verdict"].startswith(f"step 24: all rewards of prompt={name}")


def test_a_step_is_that_of_a_single_value() -> None:
    """A level that the same update began is dated a step off by noise."""
    level = Finding("kl_k3", SHIFT, 23, "", None, 23, None, score=20.0, direction="up", seen=27)
    single = Finding("ratio_p999", SPIKE, 24, "", None, 24, None, direction="up", seen=25)
    (event,) = events([level, single], Steps(StepSums(np.arange(STEPS), []), {}))
    assert (event.first.metric, event.step) == ("ratio_p999", 24)


def test_a_jump_of_rewards_dates_what_learning_began_before() -> None:
    """Rewards become more equal as they rise, until another function gives less."""
    values = {"direction": "down", "score": 20.0, "seen": 30}
    early = Finding("reward_group_std", SHIFT, 21, "", None, 21, None, **values)
    jump = Finding("reward_mean", SHIFT, 24, "", None, 24, None, at_once=True, **values)
    (event,) = events([early, jump], Steps(StepSums(np.arange(STEPS), []), {}))
    assert (event.first.metric, event.step, len(event.findings)) == ("reward_mean", 24, 2)


def overflowing(step: int, group: int) -> list[list[float]]:
    off = float(step == STEP and group == 1)
    return [[-1.0 - 899.0 * off * (at == 5 and row == 2) for at in range(16)] for row in range(8)]


@each("word", ["trend", "report"])
def test_a_record_whose_objective_overflows_is_a_finding(word: str, tmp_path: Path) -> None:
    """All other records are read."""
    rows = healthy()
    rows[STEP]["rewards"][1] = [1.0, 1.0, 0.0, 1.0] * 2
    fields = {"log_probs_new": lambda step, group: [[-1.0] * 16] * 8, "log_probs_old": overflowing}
    path = written(tmp_path / "a.jsonl", rows, **fields)
    if word == "report":
        assert run("report", path, "-o", tmp_path / "a.html", "-v", "dr").exit_code == 0
        return
    found = trend(path)
    (one,) = [one for one in found["findings"] if one["metric"] == "objective"]
    assert (one["kind"], one["onset"], found["steps"][STEP]["left_out"]) == ("impossible", STEP, 1)
    assert one["sentence"] == (
        "the objective is not finite: log ratio 899, surrogate -inf in response 2, token 5 "
        f"({path}:98, ignored) at step 24"
    )
    assert found["verdict"].startswith("step 24: objective is not finite; last good step 23")
