"""Advantages of agents: statistics that count a trajectory once, and credit turn by turn.

A trajectory is written as one response with several turns, or as several responses; these choices
give the same of both. Where it is several responses, they come in the order of its turns, and the
reward of the last one is the trajectory's. A KL in the reward is taken off the turn, or off the
response, whose tokens it is of.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.advantage.group import group_mean, group_std, leave_one_out
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.arithmetic.turns import TurnOrder
from grpo_cli.objective.choice import Arguments, Composed, Parameters, call, choice, parameters
from grpo_cli.objective.results import PerToken


def once_per_trajectory(function: Callable[..., F64], doc: str) -> Composed:
    """An advantage of rewards and groups, computed of the last response of each trajectory.

    All responses of the trajectory get it.

    Args:
        function: takes columns with a number per response, and ``groups``; returns [R].
    """
    own = parameters(function)._replace(levels={})  # a number per trajectory is none per response
    takes = own | Parameters(("trajectories",))

    def run(columns: Arguments, values: Arguments) -> F64:
        trajectories: Groups = columns["trajectories"]
        last = trajectories.lasts
        chosen = {name: columns[name][last] for name in own.columns if name != "groups"}
        groups: Groups = columns["groups"]
        chosen["groups"] = Groups(groups.index[last], groups.count)
        found: F64 = call(function, chosen, values)
        return found[trajectories.index]

    return Composed(takes, run, doc, function.__annotations__["return"])


trajectory_mean = once_per_trajectory(
    group_mean,
    """A = r − r̄, r̄ over the trajectories of the group, each counted once.

    If turns are written as responses, ``group-mean`` would count each trajectory once per turn.
    """,
)
choice("advantage", "trajectory-group-mean")(trajectory_mean)

trajectory_std = once_per_trajectory(
    group_std,
    """A = (r − r̄)/(σ + eps), r̄ and σ over the trajectories of the group, each counting once.

    References:
        SkyRL (step-wise training) and verl (several outputs of an agent loop): ddof 1, eps 1e-6;
        rLLM: ddof 0, eps 1e-6.
    """,
)
choice("advantage", "trajectory-group-std", std_ddof=1, std_eps=1e-8, std_min=0.0)(trajectory_std)

choice("advantage", "trajectory-leave-one-out")(
    once_per_trajectory(
        leave_one_out,
        """A = r − mean of the rewards of the group's other trajectories, each counting once.

    References:
        Ahmadian et al., Back to Basics (RLOO), 2024 (arXiv 2402.14740).
    """,
    )
)


@choice("advantage", "state-group-mean")
def state_group_mean(
    rewards: F64, turn_order: TurnOrder, trajectories: Groups, states: Groups
) -> F64:
    """A = r − r̄, r̄ over the trajectories of the group that began in the same state.

    Args:
        states: which turns began in the same state of one group; a trajectory's first turn counts.

    References:
        prime-rl's ``hierarchical_grpo``, the state being what an agent was given to do.
    """
    firsts = np.flatnonzero(turn_order.number == 0)
    of = trajectories.index[turn_order.response[firsts]]  # those that have tokens
    peers = Groups(states.index[firsts], states.count)
    found = np.zeros(trajectories.count)
    found[of] = peers.offsets(rewards[trajectories.lasts[of]])
    return found[trajectories.index]


def turn_rewards_less_kl(turn_scores: F64, token_penalty: F64, turns: Segments) -> F64:
    """[T] the reward of each turn, less what a KL in the reward takes off at its tokens."""
    return turn_scores - turns.sum(token_penalty) if token_penalty.any() else turn_scores


def turn_returns_to_go(
    turn_scores: F64, token_penalty: F64, turn_order: TurnOrder, gamma: float
) -> F64:
    """[T] Gₖ = Σⱼ≥ₖ γ^(j−k)·rⱼ over the turns of the trajectory."""
    rewards = turn_rewards_less_kl(turn_scores, token_penalty, turn_order.turns)
    return turn_order.returns(rewards, gamma)


@choice("advantage", "turn-returns", gamma=1.0)
def turn_returns(
    turn_scores: F64, token_penalty: F64, turn_order: TurnOrder, *, gamma: float
) -> PerToken:
    """Aₖ = Σⱼ≥ₖ γ^(j−k)·rⱼ: the discounted return from each turn on; no baseline.

    All tokens of a turn share it. The discount is per turn; ``returns`` discounts per token.

    Args:
        turn_scores: [T] rⱼ; without rewards of turns, a response's reward at its last turn.
        gamma: discount per turn; 0 leaves each turn its own reward.

    References:
        AReaL's ``turn_discount``; ROLL's ``agentic_reinforce``; GiGPO, 2025 (arXiv 2505.10978),
        equation 5.
    """
    found = turn_returns_to_go(turn_scores, token_penalty, turn_order, gamma)
    return PerToken(turn_order.turns.spread(found))


@choice("advantage", "turn-group-mean", gamma=1.0, turn_peers="number")
def turn_group_mean(
    turn_scores: F64,
    token_penalty: F64,
    turn_order: TurnOrder,
    groups: Groups,
    *,
    gamma: float,
    turn_peers: str,
) -> PerToken:
    """The return from each turn on, minus the mean of the turns that it is compared with.

    The return is Σⱼ≥ₖ γ^(j−k)·rⱼ, as in ``turn-returns``. A turn without others to compare with
    has advantage 0.

    Args:
        turn_scores, token_penalty, turn_order, gamma: as for ``turn-returns``.
        turn_peers: number: with the turns of the same number in their trajectories, a baseline of
            each turn; group: with all turns of the group.
    """
    found = turn_returns_to_go(turn_scores, token_penalty, turn_order, gamma)
    peers = turn_order.peers(groups, by_number=turn_peers == "number")
    return PerToken(turn_order.turns.spread(peers.offsets(found)))


@choice("advantage", "turn-group-std", gamma=1.0, turn_peers="number", std_ddof=1, std_eps=1e-8)
def turn_group_std(
    turn_scores: F64,
    token_penalty: F64,
    turn_order: TurnOrder,
    groups: Groups,
    *,
    gamma: float,
    turn_peers: str,
    std_ddof: int,
    std_eps: float,
) -> PerToken:
    """``turn-group-mean`` divided by σ + eps, with the std σ of the same returns.

    Args:
        turn_scores, token_penalty, turn_order, gamma: as for ``turn-returns``.
        groups, turn_peers: as for ``turn-group-mean``.

    References:
        rLLM's ``per_step``: γ = 0, eps 1e-6, turn_peers number; ROLL's ``step_reinforce``:
        γ = 0.95, eps 1e-6, turn_peers group.
    """
    found = turn_returns_to_go(turn_scores, token_penalty, turn_order, gamma)
    peers = turn_order.peers(groups, by_number=turn_peers == "number")
    scaled = group_std(found, peers, std_ddof=std_ddof, std_eps=std_eps, std_min=0.0)
    return PerToken(turn_order.turns.spread(scaled))


@choice("advantage", "outcome-and-turn", turn_advantage_coef=1.0, std_ddof=1, std_eps=1e-4)
def outcome_and_turn(
    rewards: F64,
    turn_rewards: F64,
    turn_order: TurnOrder,
    groups: Groups,
    trajectories: Groups,
    *,
    turn_advantage_coef: float,
    std_ddof: int,
    std_eps: float,
) -> PerToken:
    """MT-GRPO: the advantage of the trajectory's reward plus λ times that of the turn's reward.

    Both are (reward − mean)/(σ + eps): over the trajectories of the group, and over its turns with
    the same number.

    Args:
        turn_advantage_coef: λ.

    References:
        Zeng et al., Reinforcing Multi-Turn Reasoning in LLM Agents, 2025 (arXiv 2505.11821).
    """
    outcome: F64 = trajectory_std(
        rewards, groups, trajectories, std_ddof=std_ddof, std_eps=std_eps, std_min=0.0
    )
    peers = turn_order.peers(groups, by_number=True)
    own = group_std(turn_rewards, peers, std_ddof=std_ddof, std_eps=std_eps, std_min=0.0)
    found = outcome[turn_order.response] + turn_advantage_coef * own
    return PerToken(turn_order.turns.spread(found))


@choice(
    "advantage",
    "gigpo",
    gamma=0.95,
    turn_advantage_coef=1.0,
    outcome_unit="trajectory",
    std_ddof=1,
    std_eps=1e-6,
)
def gigpo(
    rewards: F64,
    turn_scores: F64,
    token_penalty: F64,
    turn_order: TurnOrder,
    groups: Groups,
    trajectories: Groups,
    states: Groups,
    *,
    gamma: float,
    turn_advantage_coef: float,
    outcome_unit: str,
    std_ddof: int,
    std_eps: float,
) -> PerToken:
    """GiGPO: the advantage of the trajectory's reward, plus ω times that of a turn in its state.

    The first is (r − r̄)/(σ + eps) over the trajectories of the group, the second is the
    same formula for the discounted returns, over the group's turns that began in the same state.

    Args:
        turn_scores, token_penalty, turn_order, gamma: as for ``turn-returns``.
        turn_advantage_coef: ω.
        outcome_unit: what counts once in the first mean and σ: trajectory, as in the paper; turn:
            a trajectory counts as often as it has turns, as in the authors' code and in ROLL.

    References:
        Feng et al., GiGPO, 2025 (arXiv 2505.10978), equations 3 to 8.
    """
    found = turn_returns_to_go(turn_scores, token_penalty, turn_order, gamma)
    scale = partial(group_std, std_ddof=std_ddof, std_eps=std_eps, std_min=0.0)
    if outcome_unit == "trajectory":
        values = {"std_ddof": std_ddof, "std_eps": std_eps, "std_min": 0.0}
        outcome = trajectory_std(rewards, groups, trajectories, **values)[turn_order.response]
    else:
        last = trajectories.lasts[trajectories.index[turn_order.response]]
        by_turn = Groups(groups.index[turn_order.response], groups.count)
        outcome = scale(rewards[last], by_turn)
    return PerToken(turn_order.turns.spread(outcome + turn_advantage_coef * scale(found, states)))


@choice("advantage", "turn-gae", gamma=1.0, gae_lambda=0.95)
def turn_gae(
    turn_scores: F64,
    token_penalty: F64,
    values: F64,
    turn_order: TurnOrder,
    *,
    gamma: float,
    gae_lambda: float,
) -> PerToken:
    """GAE of turns: Aₖ = Σⱼ≥ₖ (γλ)^(j−k)·δⱼ, δₖ = rₖ + γ·Vₖ₊₁ − Vₖ, V 0 after the last turn.

    Vₖ is the critic's value at the turn's first token. All tokens of the turn share Aₖ.

    Args:
        gae_lambda: λ, per turn.

    References:
        Li et al., Turn-PPO, 2025 (arXiv 2512.17008), as in AReaL with ``gae_timestep_unit`` turn,
        where a KL in the reward affects only its own token.
    """
    turns = turn_order.turns
    now = values[turns.starts]
    rewards = turn_rewards_less_kl(turn_scores, token_penalty, turns)
    errors = rewards + gamma * turn_order.following(now) - now
    return PerToken(turns.spread(turn_order.returns(errors, gamma * gae_lambda)))
