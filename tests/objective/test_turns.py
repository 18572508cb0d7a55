"""Turns and trajectories: two layouts of the same agents, values by hand, rejected tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rows import on

from grpo_cli.batch import Batch, Segments
from grpo_cli.objective.breakdown import Breakdown

# Two prompts. Turns of trajectories: 2, 3, 1 and 1, 2.
TURNS = np.array([2, 3, 1, 1, 2])
OF_GROUP = np.array([0, 0, 0, 1, 1])
TOKENS = np.array([2, 1, 3, 1, 2, 4, 1, 2, 2])
TRAJECTORY = np.repeat(np.arange(5), TURNS)
REWARDS = np.array([1.0, 0.0, 0.5, 0.25, 0.25])
TURN_REWARDS = np.array([0.5, 1.0, 0.0, 0.5, 0.0, 0.5, 0.25, 1.0, 0.25])
DRAW = np.random.default_rng(1)
OLD = -DRAW.exponential(1.0, TOKENS.sum()) - 1e-3
COLUMNS = {
    "log_probs_old": OLD,
    "log_probs_new": np.minimum(OLD + DRAW.normal(0.0, 0.3, len(OLD)), -1e-3),
    "log_probs_ref": np.minimum(OLD + DRAW.normal(0.0, 0.3, len(OLD)), -1e-3),
    "log_probs_rollout": np.minimum(OLD + DRAW.normal(0.0, 0.3, len(OLD)), -1e-3),
    "values": DRAW.normal(size=len(OLD)),
    "entropies": DRAW.exponential(1.0, len(OLD)),
    "turn_rewards": TURN_REWARDS,
    "state_ids": np.array([0.0, 1.0, 0.0, 2.0, 1.0, 0.0, 1.0, 0.0, 1.0]),
}
AS_RESPONSES = Batch(
    Segments(np.bincount(TRAJECTORY, TOKENS).astype(np.int64)),
    Segments(np.array([5])),
    OF_GROUP,
    2,
    rewards=REWARDS,
    turn_ids=np.repeat(np.concatenate([np.arange(n) for n in TURNS]), TOKENS),
    **COLUMNS,
)
AS_ROWS = Batch(
    Segments(TOKENS),
    Segments(np.array([9])),
    OF_GROUP[TRAJECTORY],
    2,
    rewards=REWARDS[TRAJECTORY],
    trajectories=TRAJECTORY,
    trajectory_count=5,
    **COLUMNS,
)
CHOICES = [
    {"aggregate": "turn-mean"},
    {"aggregate": "trajectory-mean"},
    {"ratio": "turn"},
    *(
        {"advantage": name}
        for name in (
            *("trajectory-group-mean", "trajectory-group-std", "trajectory-leave-one-out"),
            *("turn-returns", "turn-group-mean", "turn-group-std", "outcome-and-turn", "turn-gae"),
            *("state-group-mean", "gigpo"),
            *("rllm/grpo", "rllm/per_step", "verl/grpo_multi_trajectories"),
        )
    ),
]


def ran(batch: Batch, variant: str = "grpo", **how: Any) -> Breakdown:
    return on(batch, variant, **how)


@pytest.mark.parametrize("how", CHOICES, ids=str)
def test_a_turn_a_response_gives_what_turns_in_a_response_give(how: dict[str, str]) -> None:
    how = {"advantage": "trajectory-group-std", "aggregate": "turn-mean", **how}
    one, other = ran(AS_RESPONSES, **how), ran(AS_ROWS, **how)
    assert one.record_objective == pytest.approx(other.record_objective, rel=1e-13)
    assert one.gradient == pytest.approx(other.gradient, rel=1e-13)
    assert one.contribution.sum() == pytest.approx(one.record_objective[0], rel=1e-13)


def by_turn(found: Breakdown) -> list[float]:
    """The advantage of each turn, which all its tokens have."""
    starts = np.cumsum(TOKENS) - TOKENS
    assert (np.repeat(found.advantage[starts], TOKENS) == found.advantage).all()
    return [float(x) for x in found.advantage[starts]]


def test_a_trajectory_counts_once_and_an_equal_group_has_exactly_none() -> None:
    found = by_turn(ran(AS_ROWS, advantage="trajectory-group-mean"))
    assert found == [0.5, 0.5, -0.5, -0.5, -0.5, 0.0, 0.0, 0.0, 0.0]
    rows = by_turn(ran(AS_ROWS, advantage="group-mean"))
    assert rows[0] == pytest.approx(1.0 - 2.5 / 6)


def test_returns_are_discounted_by_turn() -> None:
    found = by_turn(ran(AS_RESPONSES, advantage="turn-returns", gamma=0.5))
    assert found == [1.0, 1.0, 0.25, 0.5, 0.0, 0.5, 0.25, 1.125, 0.25]
    outcome = replace(AS_RESPONSES, turn_rewards=None)
    found = by_turn(ran(outcome, advantage="turn-returns", gamma=0.5))
    assert found == [0.5, 1.0, 0.0, 0.0, 0.0, 0.5, 0.25, 0.125, 0.25]


def test_peers_are_turns_of_the_number_or_of_the_group() -> None:
    found = by_turn(ran(AS_ROWS, advantage="turn-group-mean", gamma=0.0))
    third = 1.0 / 3.0  # the mean of ½, 0 and ½, the first turns
    assert found[0] == found[5] == pytest.approx(0.5 - third)
    assert (found[1], found[4]) == (0.25, 0.0)  # 1 and ½; no other third turn
    found = by_turn(ran(AS_ROWS, advantage="turn-group-mean", gamma=0.0, turn_peers="group"))
    assert found[6:] == [-0.25, 0.5, -0.25]


def test_trajectories_that_began_alike_are_compared() -> None:
    states = np.array([7.0, 1.0, 7.0, 2.0, 1.0, 3.0, 1.0, 7.0, 1.0])
    found = by_turn(ran(replace(AS_ROWS, state_ids=states), advantage="state-group-mean"))
    assert found == [0.5, 0.5, -0.5, -0.5, -0.5, 0.0, 0.0, 0.0, 0.0]


def test_a_kl_in_the_reward_is_taken_off_the_turn_it_is_of() -> None:
    how = {"advantage": "turn-returns", "kl": "k1-in-reward", "gamma": 1.0}
    found = by_turn(ran(AS_ROWS, "dr", beta=0.5, **how))
    log_ratio = OLD - COLUMNS["log_probs_ref"]
    assert found[5] == pytest.approx(0.5 - 0.5 * log_ratio[9:13].sum())


def test_weights_of_turns_and_of_trajectories() -> None:
    found = ran(AS_RESPONSES, aggregate="turn-mean")
    assert found.token_weight == pytest.approx(np.repeat(1.0 / (9 * TOKENS), TOKENS))
    found = ran(AS_ROWS, aggregate="trajectory-mean")
    sizes = np.bincount(TRAJECTORY, TOKENS)[TRAJECTORY]
    assert found.token_weight == pytest.approx(np.repeat(1.0 / (5 * sizes), TOKENS))


@pytest.mark.parametrize("ratio", ["token", "turn", "sequence"])
@pytest.mark.parametrize("correction", ["verl/decoupled", "areal/m2po"])
def test_the_gradient_of_turn_means_where_tokens_are_rejected(ratio: str, correction: str) -> None:
    """By finite differences, with a KL of the same weights."""
    how: dict[str, Any] = {"aggregate": "turn-mean", "ratio": ratio, "correction": correction}
    how |= {"beta": 0.3, "epsilon_low": 5.0, "epsilon_high": 5.0}
    if correction == "verl/decoupled":
        how |= {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.9_1.2"}
    else:
        how["m2_threshold"] = 0.02
    found = ran(AS_RESPONSES, **how)
    assert found.kept is not None
    assert 0 < found.kept.sum() < len(OLD)
    direction = np.random.default_rng(3).normal(size=len(OLD))
    new = COLUMNS["log_probs_new"]
    ends = [
        ran(replace(AS_RESPONSES, log_probs_new=new + step * direction), **how).record_objective[0]
        for step in (1e-6, -1e-6)
    ]
    slope = (ends[0] - ends[1]) / 2e-6
    assert (found.gradient * direction).sum() == pytest.approx(slope, rel=1e-6, abs=1e-9)
