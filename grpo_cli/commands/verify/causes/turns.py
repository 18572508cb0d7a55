"""Turns of agents: counted, grouped, rewarded or trained otherwise; returns by other rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.verify.causes.case import Case, Cause, catalogued
from grpo_cli.commands.verify.causes.statistics import own_rewards
from grpo_cli.objective.advantage.turns import once_per_trajectory
from grpo_cli.objective.arithmetic.turns import TurnOrder
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound, Choice
from grpo_cli.objective.inputs import Inputs

# ---- statistics ----------------------------------------------------------------------------------


def trajectories(case: Case) -> Iterator[Cause]:
    """Yields statistics over turns, over trajectories, or over the turns of each trajectory."""
    own, batch = case.objective.advantage, case.batch
    if own.choice.given or batch.trajectory_count in (0, batch.responses.count):
        return
    if "trajectories" in own.choice.columns:
        each = {"trajectories": None, "trajectory_count": 0}
        yield catalogued("turn-counted.turns", lambda case: case.with_columns(**each))
    else:
        once = Choice(once_per_trajectory(own.choice.function, ""))
        bound = Bound(own.name, once, own.values)
        yield catalogued(
            "turn-counted.trajectories", lambda case: case.evaluated(None, advantage=bound)
        )
    groups = {"groups": batch.trajectories, "group_count": batch.trajectory_count}
    yield catalogued("turn-groups.own", lambda case: case.with_columns(**groups))


# ---- credit --------------------------------------------------------------------------------------


def credit(case: Case) -> Iterator[Cause]:
    """Yields advantages of other turns, and turns that are not trained."""
    if not case.batch.responses.total or not _order(case).number.any():
        return
    for key, change in _CREDIT.items():
        if key != "turn-reward-first" or case.batch.turn_rewards is not None:
            yield catalogued(key, change)


def _order(case: Case) -> TurnOrder:
    order: TurnOrder = Inputs(case.batch).get("turn_order")
    return order


def _edge(order: TurnOrder, *, last: bool) -> NDArray[np.bool_]:
    """[turns] whether a turn is the last, or the first, of its trajectory."""
    found: NDArray[np.bool_] = order.number == 0
    return order.following(np.ones(len(found))) == 0.0 if last else found


def _neighbour(case: Case, *, after: bool) -> Breakdown:
    order = _order(case)
    own = case.breakdown.advantage[order.turns.starts]
    if not np.array_equal(order.turns.spread(own), case.breakdown.advantage):
        raise ValueError("advantages differ within turns")
    last = _edge(order, last=True)
    moved = np.where(last, own, order.following(own))
    if not after:
        next_turn = order.following(np.arange(len(own), dtype=np.float64)).astype(np.int64)
        moved = own.copy()
        moved[next_turn[~last]] = own[~last]
    return case.with_advantages(order.turns.spread(moved))


def _last_mask(case: Case, *, right: bool) -> Breakdown:
    """Gives each turn its advantage only where the last turn of its trajectory has tokens."""
    order = _order(case)
    lengths, at = order.turns.lengths.astype(np.float64), order.turns.positions
    of_last = order.returns(np.where(_edge(order, last=True), lengths, 0.0), 1.0)
    at = order.turns.spread(order.turns.lengths) - 1 - at if right else at
    inside = at < order.turns.spread(of_last)
    return case.with_advantages(np.where(inside, case.breakdown.advantage, 0.0))


def _silent(case: Case, *, last: bool) -> Breakdown:
    """Gives the other turns than the last, or the first, an advantage of 0."""
    order = _order(case)
    learns = order.turns.spread(_edge(order, last=last))
    return case.with_advantages(np.where(learns, case.breakdown.advantage, 0.0))


def _only(case: Case, *, last: bool) -> Breakdown:
    """Masks the other turns than the last, or the first."""
    order = _order(case)
    mask = np.zeros(case.written.total, dtype=np.bool_)
    mask[np.flatnonzero(case.mask)] = order.turns.spread(_edge(order, last=last))
    return case.with_record(mask=mask.tobytes())


def _first_reward(case: Case) -> Breakdown:
    order, rewards = _order(case), case.batch.turn_rewards
    assert rewards is not None
    sums: F64 = order.returns(rewards, 1.0)
    return case.with_columns(turn_rewards=np.where(_edge(order, last=False), sums, 0.0))


_CREDIT: Mapping[str, Callable[[Case], Breakdown]] = {
    "turn-displaced.before": partial(_neighbour, after=False),
    "turn-displaced.after": partial(_neighbour, after=True),
    "turn-displaced.right": partial(_last_mask, right=True),
    "turn-displaced.left": partial(_last_mask, right=False),
    "turn-silent.last": partial(_silent, last=True),
    "turn-silent.first": partial(_silent, last=False),
    "turns-missing.last": partial(_only, last=True),
    "turns-missing.first": partial(_only, last=False),
    "turn-reward-first": _first_reward,
}
"""What is done to the advantages, the mask or the rewards of turns."""

# ---- returns and GAE: other steps of time, another end, another discount -------------------------


class Rule(NamedTuple):
    """How returns are summed up; each part by the words that name it where it is another one.

    Attributes:
        steps: which tokens are steps of time.
        end: what the critic's value is after the last step.
        gap: what happens where tokens do not count between those that do.
        penalised: whose KL is subtracted from the rewards.
        discount: γ, λ, and whether positions are counted from the start as well.
    """

    steps: str = ""
    end: str = ""
    gap: str = ""
    penalised: str = ""
    discount: str = ""


_PARTS: Mapping[str, tuple[str, ...]] = {
    "steps": ("", "all tokens are steps, also those that the mask leaves out (tools, padding)"),
    "end": ("", "the value after the last token is the critic's at the padding, instead of 0"),
    "gap": ("", "the return is reset at each gap of the mask: only the last turn has the reward"),
    "penalised": (
        "",
        "the KL of masked tokens (tools) is in the returns",
        "the KL is not in the returns",
    ),
    "discount": (
        "",
        "discount: γ is 1",
        "discount: λ is 1",
        "discount: γ and λ are exchanged",
        "discount: γ to the power of the absolute position multiplies each advantage again",
    ),
}
_MOST = 512
"""Responses of a record that rules are tried on."""


def returns(case: Case) -> Iterator[Cause]:
    """Yields the rules that differ in one or two parts, where the advantage is a return."""
    own = case.objective.advantage
    if "gamma" not in own.values or own.choice.given:
        return
    if case.batch.responses.count > _MOST or case.batch.records.count != 1:
        return
    ours = case.breakdown.advantage
    made = _advantages(case, Rule())
    if made is None or not np.allclose(made, ours, rtol=1e-7, atol=1e-9):
        return
    rules = [Rule(*parts) for parts in product(*_PARTS.values())]
    seen, most = [ours], 1 if case.gradient is None else 2
    for rule in sorted(rules, key=lambda rule: sum(map(bool, rule))):
        made = _advantages(case, rule) if 1 <= sum(map(bool, rule)) <= most else None
        if made is None or any(np.allclose(made, each, rtol=1e-9) for each in seen):
            continue  # of rules that are one here, the simplest
        seen.append(made)
        words = ", and ".join(filter(None, rule))
        yield Cause("return-rule", words, partial(_with, rule=rule), "advantage")


def _with(case: Case, rule: Rule) -> Breakdown:
    made = _advantages(case, rule)
    if made is None:
        raise ValueError("the record lacks what the rule reads")
    return case.with_advantages(made)


def _advantages(case: Case, rule: Rule) -> F64 | None:
    """[N] the advantages of the tokens that count."""
    rewards, given = own_rewards(case), case.record.columns
    values = case.objective.advantage.values
    if rewards is None:
        return None
    gamma, decay = float(values["gamma"] or 0.0), float(values.get("gae_lambda") or 1.0)
    if "γ is 1" in rule.discount:
        gamma = 1.0
    elif "λ is 1" in rule.discount:
        decay = 1.0
    elif "exchanged" in rule.discount:
        gamma, decay = decay, gamma
    has_critic = "values" in case.objective.advantage.choice.columns
    critic = np.frombuffer(given["values"]) if has_critic and "values" in given else None
    if rule.end and critic is None:
        return None
    penalty = _penalties(case)
    found = np.zeros(case.written.total)
    unpadded = case.unpadded
    for row, (start, length) in enumerate(
        zip(case.written.starts.tolist(), case.written.lengths.tolist(), strict=True)
    ):
        mask = case.mask[start : start + length]
        counted = np.flatnonzero(mask)
        if not len(counted):
            continue
        last = int(counted[-1])
        steps = np.arange(max(int(unpadded[row]), last + 1)) if rule.steps else counted
        running = following = 0.0
        if rule.end and critic is not None and last + 1 < length:
            following = float(critic[start + last + 1])
        after = None
        for at in steps[::-1].tolist():
            if rule.gap and after is not None and after != at + 1:
                running = following = 0.0
            here = 0.0 if critic is None else float(critic[start + at])
            paid = 0.0 if "not in" in rule.penalised else penalty[start + at]
            paid *= mask[at] or bool(rule.steps)
            reward = (float(rewards[row]) if at == last else 0.0) - paid
            if "of masked" in rule.penalised and after is not None:
                reward -= float(penalty[start + at + 1 : start + after].sum())
            running = reward + gamma * following - here + gamma * decay * running
            found[start + at], following, after = running, here, at
        if "absolute" in rule.discount:
            found[start + steps] *= gamma ** np.arange(len(steps))
    returned = found[case.mask]
    if "std_ddof" not in values or has_critic:
        return returned
    std = float(returned.std(ddof=int(values["std_ddof"] or 0)))  # whitened over the record
    return (returned - returned.mean()) / (std + float(values.get("std_eps") or 0.0))


def _penalties(case: Case) -> F64:
    """[N as written] β times log π_old − log π_ref where the KL is in the rewards; else 0."""
    given, none = case.record.columns, np.zeros(case.written.total)
    if not case.objective.kl_in_reward or "log_probs_ref" not in given:
        return none
    old = np.frombuffer(given.get("log_probs_old", given["log_probs_new"]))
    beta = float(case.objective.kl.values.get("beta") or 0.0)
    penalties: F64 = beta * (old - np.frombuffer(given["log_probs_ref"]))
    return penalties
