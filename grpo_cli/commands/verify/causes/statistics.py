"""Advantages by other statistics: of other rewards, over other sets of responses.

An advantage is (reward − centre)/scale, and each of the four parts of that is a choice of its own:
which reward, the centre and the scale over which responses, and what a response gets that is alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64
from grpo_cli.commands.verify.causes.advantages import EPS, mean_of_others, std_of
from grpo_cli.commands.verify.causes.case import Case, Cause
from grpo_cli.objective.advantage.weighed import WEIGHTS, summed
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.inputs import Inputs

Flags = NDArray[np.bool_]

# ---- the four parts ------------------------------------------------------------------------------


def own_rewards(case: Case) -> F64 | None:
    """[R] the rewards, of several functions their weighted sum; None where there are none."""
    rewards, weights = case.batch.rewards, case.objective.advantage.values.get(WEIGHTS)
    if rewards is None or rewards.ndim == 1:
        return rewards
    return np.nansum(rewards, axis=1) if weights is None else summed(rewards, weights)


def _unweighted(case: Case) -> F64 | None:
    rewards = case.batch.rewards
    return None if rewards is None or rewards.ndim == 1 else np.nansum(rewards, axis=1)


def _less_kl(case: Case) -> F64 | None:
    """The rewards less β times the sum of log π_old − log π_ref over each response."""
    rewards, batch = own_rewards(case), case.batch
    if rewards is None or batch.log_probs_old is None or batch.log_probs_ref is None:
        return None
    return rewards - case.objective.beta * batch.responses.sum(
        batch.log_probs_old - batch.log_probs_ref
    )


_REWARDS: Mapping[str, tuple[Callable[[Case], F64 | None], str]] = {
    "": (own_rewards, ""),
    "reward functions are not weighted: reward_weights is ignored": (_unweighted, "reward-weights"),
    "the KL is subtracted from the rewards as well": (_less_kl, "kl-in-reward-twice"),
}
"""What the rewards are → how they are computed, and the mistake."""

Sets = tuple[I64, Flags]
"""[R] the set that each response is compared with, and whether it counts in its own."""


def _of(labels: I64, counted: Flags | None = None) -> Sets:
    return labels, np.ones(len(labels), dtype=np.bool_) if counted is None else counted


def _groups(case: Case) -> Sets:
    return _of(case.batch.groups)


def _trajectories(case: Case) -> Sets | None:
    """The groups, in which a trajectory counts once."""
    of = case.batch.trajectories
    if of is None:
        return None
    once = np.zeros(len(of), dtype=np.bool_)
    once[np.unique(of, return_index=True)[1]] = True
    return _of(case.batch.groups, once)


def _numbers(case: Case) -> Sets | None:
    """The responses of a group that are the same turn of their trajectories."""
    if case.batch.trajectories is None:
        return None
    order = Inputs(case.batch).get("turn_order")
    if order.turns.count != case.batch.responses.count:
        return None
    return _of(case.batch.groups * (int(order.number.max(initial=0)) + 1) + order.number)


def _filled(case: Case) -> Sets | None:
    filled = case.batch.responses.lengths > 0
    return None if filled.all() else _of(case.batch.groups, filled)


def _blocks(case: Case) -> Sets:
    size = max(int(np.bincount(case.batch.groups).max(initial=1)), 1)
    return _of(np.arange(case.batch.responses.count) // size)


def _halves(case: Case) -> Sets:
    count = case.batch.responses.count
    return _of(np.arange(count) // max((count + 1) // 2, 1))


_SETS: Mapping[str, tuple[Callable[[Case], Sets | None], str]] = {
    "the group": (_groups, ""),
    "the group, in which each trajectory counts once": (_trajectories, "turn-counted"),
    "the group's responses that are not masked entirely (truncated ones are left out)": (
        _filled,
        "masked-response-votes",
    ),
    "the responses of the group that are the same turn (each step by its number)": (
        _numbers,
        "turn-groups",
    ),
    "all groups of the batch": (
        lambda case: _of(np.zeros(case.batch.responses.count, dtype=np.int64)),
        "batch-as-one-group",
    ),
    "consecutive rows, as many as the largest group has, across groups": (_blocks, "group-stride"),
    "each half of the batch (a rank's part)": (_halves, "batch-as-one-group"),
}
"""Over what the centre and the scale are."""

_CENTRES: Mapping[str, Callable[[F64], F64 | float]] = {
    "mean": np.mean,
    "reward of the first response": lambda r: r[0],
    "mean of the others": mean_of_others,
    "median": np.median,
    "least": np.min,
    "greatest": np.max,
    "": lambda _: 0.0,
}
_SCALES: Mapping[str, Callable[[F64], F64 | float]] = {
    "std (ddof 1)": partial(std_of, ddof=1),
    "std (ddof 0)": partial(std_of, ddof=0),
    "": lambda _: 1.0,
}
_LONE = ("advantage 0", "its reward as its advantage")


class Formula(NamedTuple):
    """An advantage.

    Attributes:
        rewards: what the rewards are.
        centre, of: what is subtracted, and over which responses it is computed.
        scale, by: what the difference is divided by, and over which responses it is computed.
        lone: what a response gets that is alone in its set.
    """

    rewards: str
    centre: str
    of: str
    scale: str
    by: str
    lone: str


def _tabled(case: Case, name: str, rewards: F64, statistic: Callable[[F64], F64 | float]) -> F64:
    """[R] a statistic of the rewards that count in each response's set; NaN of none."""
    found = _SETS[name][0](case)
    values = np.full(len(rewards), np.nan)
    if found is None:
        return values
    labels, counted = found
    for label in np.unique(labels):
        members, own = counted & (labels == label), labels == label
        if members.sum() < 1:
            continue
        got = statistic(rewards[members])
        if np.ndim(got):
            values[members] = got
        else:
            values[own] = got
    return values


class _Tables:
    """The statistics of a record, each computed once."""

    def __init__(self, case: Case, eps: float) -> None:
        self.case = case
        self.known: dict[tuple[str, ...], F64] = {}
        self.eps = eps

    def rewards(self, name: str) -> F64 | None:
        return _REWARDS[name][0](self.case)

    def table(self, kind: str, rewards: str, name: str, of: str) -> F64 | None:
        if (key := (kind, rewards, name, of)) not in self.known:
            values = self.rewards(rewards)
            if values is None:
                return None
            statistic = (_CENTRES if kind == "centre" else _SCALES)[name]
            self.known[key] = _tabled(self.case, of, values, statistic)
        return self.known[key]

    def advantages(self, formula: Formula) -> F64 | None:
        """[R] by a formula; None where the record lacks what it reads."""
        rewards, sets = self.rewards(formula.rewards), _SETS[formula.of][0](self.case)
        if sets is None or _SETS[formula.by][0](self.case) is None:
            return None
        centre = self.table("centre", formula.rewards, formula.centre, formula.of)
        scale = self.table("scale", formula.rewards, formula.scale, formula.by)
        if rewards is None or centre is None or scale is None:
            return None
        eps = self.eps if formula.scale else 0.0
        off = rewards - centre
        with np.errstate(all="ignore"):
            found = np.where(off == 0.0, 0.0, off / (scale + eps))
        labels, counted = sets
        alone = np.bincount(labels, counted)[labels] == 1
        lone = np.zeros_like(rewards) if formula.lone == _LONE[0] else rewards / (1.0 + eps)
        return np.where(alone, lone, found)


def _other_parts(own: Formula, most: int) -> Iterator[tuple[int, Formula]]:
    """Yields formulas and how many of their parts are other ones, those with the fewest first."""
    parts = (_REWARDS, _CENTRES, _SETS, _SCALES, _SETS, _LONE)
    counted = []
    for one in map(Formula._make, product(*parts)):
        count = sum(a != b for a, b in zip(own, one, strict=True))
        count -= own.of != one.of and one.of == one.by and own.of == own.by  # one set for both
        if count <= most:
            counted.append((count, one))
    yield from sorted(counted, key=lambda pair: pair[0])


_MOST_GROUPS = 256
"""Of a record that formulas are tried on: sets are compared one by one."""


def statistics(case: Case) -> Iterator[Cause]:
    """Yields the formulas of the fewest other parts that give the advantages of the gradients."""
    found, mine = case.effective_advantages, case.breakdown.response_advantage
    rewards = own_rewards(case)
    if found is None or mine is None or rewards is None or case.objective.advantage.choice.given:
        return
    known = np.isfinite(found)
    size = float(np.abs(found[known]).max(initial=0.0))
    if known.sum() < 3 or not size or case.batch.group_count > _MOST_GROUPS:
        return
    base = Formula("", "mean", "the group", "std (ddof 1)", "the group", _LONE[0])
    stated = case.objective.advantage.values.get("std_eps")
    tried = (_Tables(case, eps) for eps in (EPS if stated is None else (float(stated),)))
    given = (
        (tables, one)
        for tables in tried
        for _, one in _other_parts(base, 2)
        if _is(tables, one, mine, 1e-9)
    )
    if (row := next(given, None)) is None:
        return
    tables, own = row
    numbers = np.unique(np.round(np.abs(found[known]) / (1e-3 * size)))
    fitting: list[Formula] = []
    fewest = 2
    for count, one in _other_parts(own, 2):
        if count > fewest:
            break
        if one != own and _is(tables, one, np.where(known, found, np.nan), 1e-3):
            fitting.append(one)
            fewest = count
    for one in fitting:
        mistake, words = _words(own, one)
        equal = len(numbers[numbers > 0]) < 2
        yield Cause(mistake, words, partial(_with, formula=one, eps=tables.eps), "advantage", equal)


def _is(tables: _Tables, formula: Formula, wanted: F64, rtol: float) -> bool:
    """Whether a formula gives these advantages, where they are known."""
    made = tables.advantages(formula)
    if made is None:
        return False
    known = np.isfinite(wanted)
    if not np.isfinite(made[known]).all():
        return False
    room = rtol * float(np.abs(wanted[known]).max(initial=0.0))
    return bool((np.abs(made - wanted)[known] <= room + 1e-12).all())


def _with(case: Case, formula: Formula, eps: float) -> Breakdown:
    made = _Tables(case, eps).advantages(formula)
    if made is None or not np.isfinite(made).all():
        raise ValueError("the record lacks what the formula reads")
    return case.with_advantages(made)


def _words(own: Formula, other: Formula) -> tuple[str, str]:
    """The mistake, and what it is called: the parts that are other ones."""
    parts, mistakes = [], []
    if own.rewards != other.rewards:
        parts.append(other.rewards)
        mistakes.append(_REWARDS[other.rewards][1])
    moved = own.of != other.of
    if moved and other.of == other.by and own.by != other.by:
        parts.append(f"mean and std of the advantages are over {other.of}")
    elif moved or own.centre != other.centre:
        what = f"baseline: the {other.centre} of {other.of}" if other.centre else "no baseline"
        parts.append(f"{what}{'' if moved else ' instead of the ' + (own.centre or 'reward')}")
    if moved or own.centre != other.centre:
        mistakes.append(_SETS[other.of][1] or ("turn-counted" if moved else "centre"))
    if own.scale != other.scale or (own.by != other.by and not (moved and other.of == other.by)):
        over = f"divided by the {other.scale} of {other.by}" if other.scale else "not divided"
        parts.append(f"{over}{'' if other.scale else ' by the std'}")
        mistakes.append(_SETS[other.by][1] or "std-or-not")
    if own.lone != other.lone:
        parts.append(f"a response that is alone in its group has {other.lone}")
        mistakes.append("singleton-group")
    return mistakes[0], ", and ".join(parts)
