"""What a run's numbers say of why it changed: a fault at step 24 of 44, planted in every column."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import run
from files import each, some
from trended import trend, write

from grpo_cli.commands.trend.events import events
from grpo_cli.commands.trend.onsets import SHIFT, SPIKE
from grpo_cli.commands.trend.step import Finding, Steps
from grpo_cli.commands.trend.sums import StepSums

pytestmark = pytest.mark.more

STEP, STEPS, GROUPS = 24, 44, 4
COLUMNS = ("new", "old", "ref", "rollout")
IDS = [[*range(10 * row, 10 * row + 3), 77, *range(200, 212)] for row in range(8)]
WORDS = [[f"t{one}" for one in row] for row in IDS]
Columns = dict[str, Any]
Random = np.random.Generator


def sampled(draw: Random, step: int) -> Columns:
    """A healthy step: [groups, responses, tokens]."""
    old = -draw.exponential(0.7, (GROUPS, 8, 16)) - 1e-3
    sizes = {"new": 0.03, "ref": 0.01 + 0.004 * step, "rollout": 0.006}
    made = {name: old + size * draw.normal(size=old.shape) for name, size in sizes.items()}
    rewards = (draw.random((GROUPS, 8)) < 0.4).astype(float)
    return {name: np.minimum(one, -1e-5) for name, one in made.items()} | {
        "old": old,
        "rewards": rewards,
    }


def corrupt(now: Columns, since: int, draw: Random) -> None:
    if since == 0:
        now["old"][0, 0, 3] -= 9.0


def one_ratio(now: Columns, since: int, draw: Random) -> None:
    if since == 0:
        for name in COLUMNS:
            now[name][0, 2, 3] -= 1.0
        now["new"][0, 2, 3] += 0.6


def other_forward_pass(now: Columns, since: int, draw: Random) -> None:
    if since == 0:
        now["new"] = 1.6 * now["new"]


def one_token(now: Columns, since: int, draw: Random) -> None:
    now["new"][..., 3] -= 1.5


def noise_in(name: str, size: float) -> Callable[[Columns, int, Random], None]:
    """A forward pass of its own for one column, with dropout."""

    def plant(now: Columns, since: int, draw: Random) -> None:
        now[name] = np.minimum(now[name] + size * draw.normal(size=now["old"].shape), -1e-5)

    return plant


def large_update(now: Columns, since: int, draw: Random) -> None:
    """Which the policy before the next update has too, and the engine."""
    now["new"] = 1.6 * now["new"]
    if since > 0:
        now["rollout"] = now["rollout"] + 0.6 * now["old"]
        now["old"] = 1.6 * now["old"]


def large_update_of_another_engine(now: Columns, since: int, draw: Random) -> None:
    large_update(now, since, draw)
    now["rollout"] = 0.5 * now["rollout"]


def rolled(now: Columns, since: int, draw: Random) -> None:
    """Log-probs of other responses of the group, which the next policy does not make up for."""
    now["old"] = np.roll(now["old"], 1, axis=1)
    now["new"] = np.minimum(now["new"] + 0.2 * draw.normal(size=now["old"].shape), -1e-5)


def never_synced(now: Columns, since: int, draw: Random) -> None:
    noise = draw.normal(size=now["old"].shape)
    now["rollout"] = np.minimum(now["rollout"] + 0.01 * since * noise, -1e-5)


def ascending(now: Columns, since: int, draw: Random) -> None:
    """An update that follows the gradient of the loss, away from the rewards."""
    now["new"] = np.minimum(now["new"] - 0.02 * centred(now)[..., None], -1e-5)


def replaced(now: Columns, since: int, draw: Random) -> None:
    now["ref"] = np.minimum(now["ref"] - 0.6 * np.abs(draw.normal(size=now["old"].shape)), -1e-5)


def moved_little(now: Columns, since: int, draw: Random) -> None:
    now["new"] = np.minimum(now["old"] + 0.055 * draw.normal(size=now["old"].shape), -1e-5)


def two_faults(now: Columns, since: int, draw: Random) -> None:
    now["rollout"] = 1.4 * now["rollout"]
    if since >= 10:
        now["rewards"] = (draw.random((GROUPS, 8)) < 0.02).astype(float)


def copied(now: Columns, since: int, draw: Random) -> None:
    """Every other response is that before it."""
    for column in now.values():
        column[:, 1::2] = column[:, ::2]


def repeated(now: Columns, since: int, draw: Random) -> None:
    """Other responses have the ids, and nearly the log-probs, of those before them."""
    copied(now, since, draw)
    now["rollout"] += 1e-4 * draw.normal(size=now["rollout"].shape)
    now["rollout"] = np.minimum(now["rollout"], -1e-5)
    now["ids"] = [IDS[row - row % 2] for row in range(8)]


def filled(name: str) -> Callable[[Columns, int, Random], None]:
    def plant(now: Columns, since: int, draw: Random) -> None:
        now[name][:, 3] = 0.0

    return plant


def centred(now: Columns) -> Any:
    return now["rewards"] - now["rewards"].mean(axis=1, keepdims=True)


def given(now: Columns) -> Any:
    return centred(now) / (now["rewards"].std(axis=1, ddof=1, keepdims=True) + 1e-4)


PLANTED: Mapping[str, tuple[Callable[[Columns, int, Random], None], str, str]] = {
    "the policy as reference": (
        lambda now, since, draw: now.update(ref=now["old"]),
        r"step 24: log_probs_ref equals log_probs_old at all tokens; last good step 23; ",
        "compute the reference with the initial weights",
    ),
    "another reference": (
        replaced,
        r"step 24: the KL .* rose; likely: the reference was replaced by one far",
        "if the reference was not replaced on purpose, ",
    ),
    "a filled reference": (
        filled("ref"),
        r"step 24: the KL .* rose; likely: log_probs_ref is filled with 0.0; last good step 23; ",
        "a filler is not a log-prob",
    ),
    "filled log-probs": (
        filled("new"),
        r"step 24: (?!.*for one step).*; likely: log_probs_new is filled with 0.0; last good step ",
        "a filler is not a log-prob",
    ),
    "one corrupt token": (
        corrupt,
        r"step 24: .* for one step; likely: log_probs_old alone is off at 1 of 128 tokens",
        "look at how log_probs_old was written at these tokens",
    ),
    "one ratio": (
        one_ratio,
        r"step 24: one .log ratio. alone is larger than before, 0\.\d+: token 't77' \(id 77\) at "
        "position 3 of response 2 in record 24/0; 44 steps",
        "look at this token",
    ),
    "one token": (
        one_token,
        r"step 24: 80% of Σ .log ratio. is at token 't77' \(id 77\); ",
        "look at these tokens",
    ),
    "another forward pass": (
        other_forward_pass,
        r"step 24: the ratios .* moved away from 1 for one step; likely: log_probs_new is more pea",
        "divide the logits by the sampling temperature",
    ),
    "noise in old": (
        noise_in("old", 0.12),
        "step 24: log_probs_old changed, not the engine: log_probs_rollout is nearer to log_probs_",
        "",
    ),
    "old of other responses": (
        rolled,
        "step 24: log_probs_old changed, not the engine: log_probs_rollout is nearer to log_probs_",
        "",
    ),
    "noise in new": (
        noise_in("new", 0.3),
        "step 24: the ratios π_θ/π_old moved away from 1; likely: the updates move the policy too ",
        "lower the learning rate",
    ),
    "noise in rollout": (
        noise_in("rollout", 0.12),
        "step 24: the log-probs of engine and trainer diverged; ",
        "compare precision, temperature and weights of engine and trainer",
    ),
    "a large update": (
        large_update,
        "step 24: one update moved the policy too far; last good step 23; ",
        "look at the learning rate and the gradient's norm at that step",
    ),
    "a large update, and another engine": (
        large_update_of_another_engine,
        "step 24: the log-probs of engine and trainer diverged",
        "",
    ),
    "a larger update that is small": (moved_little, "no fault found in ", ""),
    "the gradient's sign": (
        ascending,
        "step 24: the updates make responses with more reward less likely; last good step 23; ",
        "find what reverses the sign of the loss",
    ),
    "another reward function": (
        lambda now, since, draw: now.update(rewards=now["rewards"] + 1.0),
        "step 24: the reward rose at once; last good step 23; ",
        "read responses with high rewards from before and after that step",
    ),
    "all rewards equal": (
        lambda now, since, draw: now.update(rewards=np.ones((GROUPS, 8))),
        r"step 24: the reward rose at once; .*reward_mean 0.\d+ → 1, ",
        "read responses with high rewards",
    ),
    "a reward that rises over five steps": (
        lambda now, since, draw: now.update(rewards=now["rewards"] + min(since + 1, 5) / 5),
        r"no fault found in .*; step 2[4-8]: reward_mean rose \(medians: reward_mean 0.\d+ → 1",
        "",
    ),
    "no reward, so no update": (
        lambda now, since, draw: now.update(rewards=np.zeros((GROUPS, 8)), new=now["old"]),
        r"step 24: the reward fell; .*reward_mean 0.\d+ → 0, ",
        "check what the reward function has returned",
    ),
    "rewards halved": (
        lambda now, since, draw: now.update(rewards=now["rewards"] / 2),
        "step 24: rewards are 0.5 times what they were; last good step 23; ",
        "look for a change of the reward function, its scale",
    ),
    "copies": (
        copied,
        "step 24: more responses are copies of others of the step; last good step 23; ",
        "look for a sampler or a loader that gives a response twice",
    ),
    "copies in the last three steps": (
        lambda now, since, draw: copied(now, since, draw) if since > 16 else None,
        "step 41: more responses are copies of others of the step; last good step 40; ",
        "look for a sampler or a loader that gives a response twice",
    ),
    "copies by ids": (
        repeated,
        r"step 24: more responses are copies of others of the step; .*last good step 23; ",
        "",
    ),
    "old overwritten": (
        lambda now, since, draw: now.update(old=now["new"]),
        "step 24: log_probs_old equals log_probs_new at all tokens; last good step 23; ",
        "if the run's settings did not change, look for code that writes one column over",
    ),
    "two faults": (
        two_faults,
        r"step 24: the log-probs of engine and trainer diverged; .*; also step 3[34]: the reward "
        r"fell; 44 steps",
        "",
    ),
    "the opposite sign": (
        lambda now, since, draw: now.update(advantages=-given(now)),
        "step 24: the sign of the advantages is reversed; last good step 23; ",
        "find what reversed the sign",
    ),
    "an engine without updates": (
        never_synced,
        "step 25: the log-probs of engine and trainer diverge further at each step; ",
        "check whether the engine still gets new weights",
    ),
}


@each("kind", [*some([*PLANTED], 3), "healthy"])
def test_a_planted_fault_is_named(kind: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(7)
    rows = [sampled(draw, step) for step in range(STEPS)]
    plant, words, fix = PLANTED.get(kind, (None, "no fault found in ", ""))
    for since, now in enumerate(rows[STEP:]) if plant is not None else ():
        plant(now, since, draw)
    found = trend(write(tmp_path / "a.jsonl", (
        {"step": step, "id": f"{step}/{group}", "rewards": now["rewards"][group].tolist()}
        | {"token_ids": now.get("ids", IDS), "tokens": WORDS}
        | {"advantages": now.get("advantages", given(now))[group].tolist()}
        | {f"log_probs_{name}": now[name][group].tolist() for name in COLUMNS}
        for step, now in enumerate(rows)
        for group in range(GROUPS)
    )))  # fmt: skip
    said = " ".join([found["verdict"], *(one["summary"] for one in found["events"])])
    assert re.match(words, said), said
    assert "".join(one["fix"] for one in found["events"]).startswith(fix)
    if "the reward rose" in words:
        assert "reward_mean" in found["events"][0]["metrics"]


def test_check_of_the_worst_step_is_not_of_an_event_that_began_later(tmp_path: Path) -> None:
    """Responses are shorter from 20 on, the shortest at 35; from 28 on the engine differs."""
    draw = np.random.default_rng(5)

    def row(step: int, group: int) -> dict[str, Any]:
        lengths = draw.poisson(24 if step < 20 else 12 if step != 35 else 9, 8) + 3
        old = [-draw.exponential(0.7, size) - 0.01 for size in lengths]
        factor = 1.0 if step < 28 else 1.4
        rollout = [factor * one for one in old]
        columns = {"log_probs_new": old, "log_probs_old": old, "log_probs_rollout": rollout}
        where = {"step": step, "id": f"{step}/{group}", "rewards": draw.integers(0, 2, 8).tolist()}
        return where | {name: [one.tolist() for one in each] for name, each in columns.items()}

    rows = [row(step, group) for step in range(STEPS) for group in range(6)]
    found = trend(write(tmp_path / "a.jsonl", rows))["events"]
    lengths, engine = (one for one in found if one["severity"] == "warning")
    assert "length_mean" in lengths["metrics"]
    assert "mismatch.k3" in engine["metrics"]
    assert lengths["check"] == []
    assert engine["check"]


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


def test_a_limit_that_a_ramp_passes_was_not_neared_from_the_first_step_on(tmp_path: Path) -> None:
    """By a slope of noise before the ramp, which makes a hundredth of the way."""
    signs = np.resize([1.0, -1.0], (4, 16))
    rows = [
        {"step": step, "rewards": [0.0, 1.0] * 2, "log_probs_new": (signs - 2.0).tolist()}
        | {"log_probs_rollout": (signs * (1.0 + size) - 2.0).tolist()}
        for step in range(STEPS)
        for size in [0.01 + 0.00005 * step + 0.01 * max(step - STEP + 1, 0)]
    ]
    found = trend(write(tmp_path / "a.jsonl", rows))["findings"]
    begun = {one["onset"] for one in found if one["metric"] == "mismatch.mult"}
    assert begun
    assert min(begun) >= STEP


@each("gain", [0.0, 0.5])
def test_shorter_responses_are_no_fault_where_the_reward_rises(gain: float, tmp_path: Path) -> None:
    draw = np.random.default_rng(5)

    def row(step: int, group: int) -> dict[str, Any]:
        short = step >= STEP
        lengths = np.maximum(draw.poisson(8 if short else 20, 8), 2)
        right = 0.3 + gain * short
        logs = [(-draw.exponential(0.7, size) - 0.01).tolist() for size in lengths]
        rewards = (draw.random(8) < right).astype(float).tolist()
        return {"step": step, "id": f"{step}/{group}", "rewards": rewards, "log_probs_new": logs}

    rows = [row(step, group) for step in range(STEPS) for group in range(12)]
    found = trend(write(tmp_path / "a.jsonl", rows))["findings"]
    (length,) = [one for one in found if one["metric"] == "length_mean"]
    assert length["severity"] == ("info" if gain else "warning")


@each(("gain", "slope", "severity"), [
    (0.02, 0.015, "info"),
    (0.0, 0.015, "warning"),
    (0.02, 0.03, "info"),  # to less than a half
    (0.02, 0.06, "warning"),  # to less than a quarter: a collapse
])  # fmt: skip
def test_a_policy_that_learns_gets_surer(
    gain: float, slope: float, severity: str, tmp_path: Path
) -> None:
    """Slowly; the title says so where it is no fault."""
    draw = np.random.default_rng(5)
    rows = [
        {"step": step, "id": f"{step}/{group}", "log_probs": (-nll).tolist(), "rewards": right}
        for step in range(STEPS)
        for since in [max(step - 15, 0)]
        for group in range(6)
        for nll in [2.0 * draw.uniform(0.6, 1.4, (8, 12)) * np.exp(-slope * since)]
        for right in [(draw.random(8) < 0.3 + gain * since).astype(float).tolist()]
    ]
    found = trend(write(tmp_path / "a.jsonl", rows))
    (event,) = [one for one in found["events"] if "nll" in one["metrics"]]
    assert event["severity"] == severity
    how = "surer of its tokens as its reward rose" if severity == "info" else "too sure of its"
    assert how in event["summary"]


def written(path: Path, rows: list[Columns], **more: Callable[[int, int], Any]) -> Path:
    """Steps as records of a group each, with fields made of their step and group."""
    return write(path, (
        {"step": step, "id": f"{step}/{group}", "rewards": now["rewards"][group].tolist()}
        | {f"log_probs_{name}": now[name][group].tolist() for name in COLUMNS if name in now}
        | {name: make(step, group) for name, make in more.items()}
        for step, now in enumerate(rows)
        for group in range(GROUPS)
    ))  # fmt: skip


def healthy(seed: int = 7) -> list[Columns]:
    draw = np.random.default_rng(seed)
    return [sampled(draw, step) for step in range(STEPS)]


def test_ratios_that_no_longer_are_1_are_named(tmp_path: Path) -> None:
    """The first of two updates of a step is at the old policy, until that is of another pass."""
    rows = healthy()
    for step, now in enumerate(rows):
        now["new"][::2] = now["old"][::2]
        if step >= STEP:
            now["old"] = np.round(now["old"], 2) - 0.001
    found = trend(written(tmp_path / "a.jsonl", rows), "-v", "grpo")
    assert found["verdict"].startswith("step 24: fewer ratios are exactly 1: log_probs_old come")
    assert [step["unmoved"] for step in found["steps"]] == [0.5] * STEP + [0.0] * (STEPS - STEP)


def test_a_mask_that_leaves_out_first_tokens_is_named(tmp_path: Path) -> None:
    """Of half of the responses, whose padding at the end is shorter; always masked ones are not."""

    def mask(step: int, group: int) -> list[list[int]]:
        late = [2 * (step >= STEP and one % 2) or int(one == 4) for one in range(8)]
        return [[0] * one + [1] * (12 - one) + [0] * 4 for one in late]

    found = trend(written(tmp_path / "a.jsonl", healthy(), mask=mask))
    assert found["verdict"].startswith("step 24: the mask leaves out the first tokens of more")
    share = [step["masked_start"] for step in found["steps"]]
    assert share == [0.125] * STEP + [0.625] * (STEPS - STEP)


@each("zeros", [0, 2])
def test_an_environment_without_reward_is_named(zeros: int, tmp_path: Path) -> None:
    """Whose groups all fail at some steps before; a list has the environment of each response."""
    names = ["maths", "code", "maths", "maths"]
    rows = healthy()
    for step, now in enumerate(rows):
        now["rewards"][1] = 0.0 if step >= STEP or step % 9 < zeros / 2 else [1.0, 0.0] * 4
    path = written(tmp_path / "a.jsonl", rows, env=lambda step, group: [names[group]] * 8)
    found = trend(path, "-v", "grpo")
    assert found["verdict"].startswith("step 24: all rewards of env=code are 0; last good step 23")
    means = [step["reward_mean/env=code"] for step in found["steps"]]
    assert means[STEP - 1 :] == [0.5] + [0.0] * (STEPS - STEP)


@each(("equal", "words"), [
    (0.0, "step 24: all rewards of prompt=2 are 0; last good step 23"),
    (-1.0, "step 24: all rewards of prompt=2 are equal; last good step 23"),
    (1.0, "no fault found in "),  # it is learnt
])  # fmt: skip
def test_a_prompt_whose_rewards_become_equal_is_named(
    equal: float, words: str, tmp_path: Path
) -> None:
    """Of four, so that means over prompts hardly show it; information where most steps lack it."""
    rows = healthy()
    for now in rows[STEP:]:
        now["rewards"][2] = equal
    path = written(tmp_path / "a.jsonl", rows, id=lambda step, group: group)
    found = trend(path, "-v", "grpo")
    assert found["verdict"].startswith(words)
    columns = {name for step in found["steps"] for name in step if "prompt=" in name}
    named = {f"{name}/prompt=2" for name in ("reward_mean", "reward_group_std")}
    assert columns == (named if equal < 1.0 else set())
    by = trend(path, "-v", "grpo", "--by", "id")["verdicts"]
    said = "reward_group_std from step 24 on: only id=2 changed (1 of 4)"
    assert equal == 1.0 or any(one.startswith(said) for one in by)
    rare = written(
        tmp_path / "b.jsonl",
        rows,
        id=lambda step, group: 100 + step if group == 2 and (step % 2 or step > 40) else group,
    )
    of_prompt = [one for one in trend(rare)["findings"] if "prompt=2" in one["metric"]]
    assert {one["severity"] for one in of_prompt} == ({"info"} if equal < 1.0 else set())


@each("now", [0.0, -1.0])
def test_a_hard_prompt_whose_rewards_become_others_is_named(now: float, tmp_path: Path) -> None:
    """Most of its groups had equal rewards of 0 before."""
    rows = healthy()
    for step, row in enumerate(rows):
        row["rewards"][2] = now if step >= STEP else 0.0
        row["rewards"][2, 0] = float(step % 4 == 1) if step < STEP else now
    path = written(tmp_path / "a.jsonl", rows, id=lambda step, group: group)
    verdict = trend(path, "-v", "grpo")["verdict"]
    words = "step 24: all rewards of prompt=2 are equal" if now else "no fault found"
    assert verdict.startswith(words)


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


@each(("equal", "dead"), [(0.1, False), (0.0, True)])
def test_rewards_that_are_equal_by_chance_are_no_finding(
    equal: float, dead: bool, tmp_path: Path
) -> None:
    """A hard prompt: seven of eight responses have 0.1 for their format, and soon all of them."""
    rows = healthy()
    for step, now in enumerate(rows):
        now["rewards"][2] = 0.1
        if STEP <= step < 34:
            now["rewards"][2] = equal
        elif step % 8:
            now["rewards"][2, step % 5] = 1.1 if step % 3 == 0 else 0.0
    path = written(tmp_path / "a.jsonl", rows, id=lambda step, group: group)
    verdict = trend(path, "-v", "grpo")["verdict"]
    words = "step 24: all rewards of prompt=2 are 0" if dead else "no fault found"
    assert verdict.startswith(words)


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


def lengths_of(step: int, draw: Random, most: int) -> Any:
    return np.minimum(draw.poisson(20, 8) + 2 + step % 2, most)


def of_lengths(path: Path, most: int, reward: Callable[[Any, int], Any]) -> Any:
    """A run whose responses have at most so many tokens from step 24 on."""
    draw = np.random.default_rng(5)
    rows = []
    for step in range(STEPS):
        for group in range(6):
            lengths = lengths_of(step, draw, most if step >= STEP else 99)
            rewards = reward((draw.random(8) < 0.4).astype(float), step) if most < 99 else None
            rewards = reward(lengths, step) if rewards is None else rewards
            logs = [(-draw.exponential(0.7, size) - 0.01).tolist() for size in lengths]
            rows.append({"step": step, "id": f"{step}/{group}", "log_probs_new": logs})
            ends = ["length" if n == most or n > 21 else "stop" for n in lengths.tolist()]
            rows[-1] |= {"rewards": rewards.tolist(), "finish_reason": ends}
    return trend(write(path, rows))


def test_a_new_limit_of_lengths_is_named(tmp_path: Path) -> None:
    """Many responses were cut off before; the step is that of the limit."""
    found = of_lengths(tmp_path / "a.jsonl", 17, lambda rewards, step: rewards)
    words = "step 24: responses have a new limit of 17 tokens, at which "
    assert found["verdict"].startswith(words)
    assert "; last good step 23; " in found["verdict"]
    assert found["events"][0]["fix"].startswith("compare max_tokens")


def test_a_new_limit_is_named_where_the_mean_length_falls_anyway(tmp_path: Path) -> None:
    """Of 28 tokens, and of 9 from step 24 on, while responses become shorter at each step.

    At one of those steps none is as long as the limit.
    """
    draw = np.random.default_rng(6)
    rows = []
    for step, group in product(range(STEPS), range(6)):
        lengths = np.minimum(draw.geometric(0.05 + 0.002 * step, 8), 28 if step < STEP else 9)
        lengths = np.minimum(lengths, 8) if step == STEP + 6 else lengths
        logs = [(-draw.exponential(0.7, size) - 0.01).tolist() for size in lengths]
        where = {"step": step, "id": f"{step}/{group}", "log_probs_new": logs}
        rows.append(where | {"rewards": (draw.random(8) < 0.4).astype(float).tolist()})
    assert trend(write(tmp_path / "a.jsonl", rows[: 6 * STEP]))["events"] == []
    found = trend(write(tmp_path / "b.jsonl", rows))
    words = "step 24: responses have a new limit of 9 tokens, at which "
    assert found["verdict"].startswith(words)


def test_a_reward_that_pays_for_length_is_named(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)

    def paid(lengths: Any, step: int) -> Any:
        return (draw.random(8) < 0.3) + 0.1 * lengths * (step >= STEP)

    found = of_lengths(tmp_path / "a.jsonl", 99, paid)
    assert found["verdict"].startswith("step 24: the reward began to favour longer responses; ")
    assert found["events"][0]["fix"].startswith("read the longest responses")


@each(("columns", "words"), [
    (COLUMNS, "step 24: the policy became too sure of its tokens; likely: tokens are sampled with"),
    (("new", "old", "rollout"), "step 24: the policy became too sure of its tokens; last good"),
])  # fmt: skip
def test_other_settings_of_the_sampler_are_likely_where_only_the_tokens_changed(
    columns: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    """All columns have surer tokens; of a policy that changed the reference has none."""
    draw, rows = np.random.default_rng(2), healthy()
    for step, now in enumerate(rows):
        old = -draw.uniform(1.9, 2.1, now["old"].shape)
        moved = {name: now[name] - now["old"] for name in COLUMNS}
        for name in COLUMNS:
            sure = 0.8 if step >= STEP and name in columns else 1.0
            now[name] = sure * old + 0.5 * moved[name]
    found = trend(written(tmp_path / "a.jsonl", rows), "-v", "grpo")
    assert found["verdict"].startswith(words)


def test_a_dead_prompt_is_no_headline_where_the_reward_fell_at_all(tmp_path: Path) -> None:
    """The answer is no longer paid for; one group still has a response without the format."""
    draw, rows = np.random.default_rng(5), healthy()
    for step, now in enumerate(rows):
        answers = (draw.random((GROUPS, 8)) < 0.6) * float(step < STEP)
        now["rewards"] = 0.5 + answers
        if step % 5 == 0:
            now["rewards"][1, 0] -= 0.5
    path = written(tmp_path / "a.jsonl", rows, id=lambda step, group: group)
    found = trend(path, "-v", "grpo")
    assert found["verdict"].startswith("step 24: the rewards fell at all prompts; last good")
    assert "reward_mean" in found["events"][0]["summary"]
    for now in rows[STEP:]:  # a prompt of four has more than the mean of all
        now["rewards"] = np.full((GROUPS, 8), 0.2)
        now["rewards"][1:, 0] = 0.0
    verdict = trend(written(path, rows, id=lambda step, group: group), "-v", "grpo")["verdict"]
    assert verdict.startswith("step 24: rewards are 0.2 instead of 0.5, 1.5; last good step 23")


@each("factor", [10.0, 0.1])
def test_the_factor_of_scaled_rewards_is_that_at_the_change(factor: float, tmp_path: Path) -> None:
    """The reward rises meanwhile, and with it the means before and after.

    That all rewards have other values says so.
    """
    draw, rows = np.random.default_rng(5), healthy()
    for step, now in enumerate(rows):
        right = draw.random((GROUPS, 8)) < 0.2 + 0.006 * step
        now["rewards"] = right * (factor if step >= STEP else 1.0)
    verdict = trend(written(tmp_path / "a.jsonl", rows))["verdict"]
    assert verdict.startswith(f"step 24: rewards are {factor:g} times what they were; last good")


@each("lag", [0, 1])
def test_the_limit_of_an_engine_that_is_behind_by_design_is_information(
    lag: int, tmp_path: Path
) -> None:
    """Its weights are those of the trainer at the first step, and a step old since."""
    rows, draw = healthy(), np.random.default_rng(3)
    for step, now in enumerate(rows):
        size = 0.2 if step or not lag else 0.01
        moved = now["old"] + size * draw.normal(size=now["old"].shape)
        now["rollout"] = np.minimum(moved, -1e-5)
    found = trend(written(tmp_path / "a.jsonl", rows), "-v", "grpo")
    (event,) = [one for one in found["events"] if "mismatch.mult" in one["metrics"]]
    assert (event["step"], event["severity"]) == (lag, "info" if lag else "warning")


def test_a_reference_that_always_was_the_old_policy_is_named(tmp_path: Path) -> None:
    rows = healthy()
    for now in rows:
        now["ref"] = now["old"]
    found = trend(written(tmp_path / "a.jsonl", rows), "-v", "grpo")
    words = "from step 0 on: log_probs_ref equals log_probs_old at all tokens"
    assert found["verdict"].startswith(words)
    assert found["events"][0]["fix"].startswith("compute the reference with the initial weights")


@each("sign", [0.0, -1.0])
def test_updates_go_against_the_rewards_only_below_0(sign: float, tmp_path: Path) -> None:
    """A correlation that falls to 0 is not one that has the opposite sign."""
    rows = healthy()
    for at, now in enumerate(rows):
        follow = 1.0 if at < STEP else sign
        noise = now["new"] - now["old"]
        update = 0.2 * noise + 0.02 * follow * centred(now)[..., None]
        now["new"] = np.minimum(now["old"] + update, -1e-5)
    (event,) = trend(written(tmp_path / "a.jsonl", rows))["events"]
    opposite = "the updates make responses with more reward less likely"
    words, fix = (
        (opposite, "find what reverses the sign")
        if sign
        else ("the updates no longer follow the rewards", "look for what gives the rewards")
    )
    assert (event["step"], event["metrics"][0]) == (STEP, "reward_ratio_corr")
    assert event["summary"].startswith(f"step {STEP}: {words}")
    assert event["fix"].startswith(fix)


@each(("column", "fix"), [
    ("ref", "compute the reference with the initial weights"),
    ("old", "if the run's settings did not change, look for code"),
    ("rollout", "if the run's settings did not change, look for code"),
])  # fmt: skip
def test_the_fix_is_of_the_column_that_was_overwritten(
    column: str, fix: str, tmp_path: Path
) -> None:
    rows = healthy()
    for now in rows[STEP:]:
        now[column] = now["old" if column == "rollout" else "new"]
    (event,) = trend(written(tmp_path / "a.jsonl", rows), "-v", "grpo")["events"]
    assert f"log_probs_{column} equals" in event["summary"]
    assert event["fix"].startswith(fix)
    assert ("log_probs_old has to be stored" in event["fix"]) == (column == "old")


@each("column", ["new", "rollout"])
def test_columns_that_are_always_equal_are_said(column: str, tmp_path: Path) -> None:
    rows = healthy()
    for now in rows:
        now[column] = now["old"]
    shown = run("trend", written(tmp_path / "a.jsonl", rows), "--limit", "2").stdout
    assert ("log_probs_old equals log_probs_new at all tokens of all" in shown) == (column == "new")
    assert ("log_probs_rollout equals the trainer's" in shown) == (column == "rollout")


def test_equal_groups_begin_where_most_of_them_are(tmp_path: Path) -> None:
    """Not at the step before, at which one of four is by chance."""
    rows = healthy(8)
    for step, now in enumerate(rows):
        now["rewards"][:] = [1.0, 0.0] * 4
        now["rewards"][: 3 * (step >= STEP) or step == STEP - 1] = 1.0
    found = trend(written(tmp_path / "a.jsonl", rows), "-v", "grpo")["findings"]
    (equal,) = [one for one in found if one["metric"] == "groups_equal"]
    assert (equal["onset"], equal["severity"]) == (STEP, "warning")


def test_a_mismatch_that_falls_did_not_diverge(tmp_path: Path) -> None:
    """Nor is it exactly 0 where it is 0 at some of these steps."""
    rows = healthy()
    for step, now in enumerate(rows[STEP:]):
        near = now["old"] + 0.1 * (now["rollout"] - now["old"])
        now["rollout"] = now["old"] if step < 6 else near
    found = trend(written(tmp_path / "a.jsonl", rows), "-v", "grpo")
    (event,) = [one for one in found["events"] if "mismatch.k3" in one["metrics"]]
    assert "came nearer" in event["summary"] or "equals the trainer" in event["summary"]
    assert not any("is exactly 0" in one["sentence"] for one in found["findings"])


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
