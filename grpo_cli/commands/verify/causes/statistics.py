"""Advantages by other statistics: of other rewards, over other sets of responses.

An advantage is (reward − centre)/(scale + ε), and each part of that is a choice of its own: which
reward, the centre and the scale over which responses, ε, and what a response gets that is alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import combinations, groupby, product
from typing import Any, NamedTuple

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.cause import Cause, other_value
from grpo_cli.commands.verify.expected import Flags
from grpo_cli.mistakes import worded
from grpo_cli.objective.advantage.weighed import WEIGHTS, summed
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.inputs import Inputs, take_penalty

Statistic = Callable[[F64], F64 | float]

# ---- the parts -----------------------------------------------------------------------------------


def own_rewards(case: Case) -> F64 | None:
    """[R] the rewards, of several functions their weighted sum; None where there are none.

    They are less the KL, where that belongs in them.
    """
    if case.objective.kl_in_reward:
        inputs = Inputs(case.batch)
        take_penalty(inputs, case.objective)
        penalised: F64 | None = inputs.get("rewards")
        return penalised
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


def _per_token(case: Case) -> F64 | None:
    """The rewards over the tokens of their responses."""
    rewards = own_rewards(case)
    return None if rewards is None else rewards / np.maximum(case.batch.responses.lengths, 1)


_REWARDS: Mapping[str, Callable[[Case], F64 | None]] = {
    "": own_rewards,
    "reward-weights": _unweighted,
    "kl-in-reward-twice": _less_kl,
    "reward-per-token": _per_token,
}
"""What the rewards are, by the mistake."""

Sets = tuple[I64, Flags]
"""[R] the set that each response is compared with, and whether it counts in its own."""


def _of(labels: I64, counted: Flags | None = None) -> Sets:
    return labels, np.ones(len(labels), dtype=np.bool_) if counted is None else counted


def _filled(case: Case) -> Sets | None:
    filled = case.batch.responses.lengths > 0
    return None if filled.all() else _of(case.batch.groups, filled)


def _half(case: Case) -> Sets:
    return _of(_rows(case) // max((case.batch.responses.count + 1) // 2, 1))


def _blocks(case: Case) -> Sets:
    return _of(_rows(case) // int(np.bincount(case.batch.groups).max()))


def _rows(case: Case) -> I64:
    return np.arange(case.batch.responses.count)


_GROUP, _BATCH, _STRIDE = "the group", "batch-as-one-group", "group-stride"
_SETS: Mapping[str, Callable[[Case], Sets | None]] = {
    _GROUP: lambda case: _of(case.batch.groups),
    _BATCH: lambda case: _of(0 * _rows(case)),
    "masked-response-votes": _filled,
    "batch-as-one-group.half": _half,
    "group-stride.every": lambda case: _of(_rows(case) % case.batch.group_count),
    "group-stride.blocks": _blocks,
    "group-stride.later": lambda case: _of(np.roll(case.batch.groups, 1)),
}
"""Over what the centre and the scale are: the group, or a mistake of the catalogue."""


def _std(r: F64, ddof: int) -> float:
    return float(r.std(ddof=ddof)) if len(r) > ddof else 0.0


_CENTRES: Mapping[str, tuple[Statistic, str]] = {
    "mean": (np.mean, "centre.mean"),
    "0": (lambda _: 0.0, "centre.none"),
    "median": (np.median, "centre.median"),
    "mean of the others": (lambda r: (r.sum() - r) / max(len(r) - 1, 1), "leave-one-out"),
    "reward of the first response": (lambda r: r[0], ""),
}
_SCALES: Mapping[str, tuple[Statistic, str]] = {
    "std (ddof 1)": (partial(_std, ddof=1), "std-or-not.ddof1"),
    "std (ddof 0)": (partial(_std, ddof=0), "std-or-not.ddof0"),
    "1": (lambda _: 1.0, "std-or-not"),
    "variance": (lambda r: _std(r, 1) ** 2, "scale-other.variance"),
    "variance (ddof 0)": (lambda r: _std(r, 0) ** 2, "scale-other.variance0"),
    "range": (np.ptp, "scale-other.range"),
    "mean absolute deviation": (lambda r: np.abs(r - r.mean()).mean(), "scale-other.deviation"),
    "root (ddof 1)": (partial(_std, ddof=1), "std-eps.root"),
    "root (ddof 0)": (partial(_std, ddof=0), "std-eps.root"),
}
"""What a statistic is → how it is computed, and the mistake that it is of a group."""

_LONE = ("advantage 0", "its reward as its advantage")
EPS = (0.0, 1e-9, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)


class Formula(NamedTuple):
    """An advantage.

    Attributes:
        rewards: what the rewards are.
        centre: what is subtracted, and over which responses it is computed.
        scale: what the difference is divided by, and over which responses it is computed.
        lone: what a response gets that is alone in its set.
        eps: what is added to the scale.
    """

    rewards: str
    centre: tuple[str, str]
    scale: tuple[str, str]
    lone: str
    eps: float


def _part(case: Case, table: Mapping[str, Callable[[Case], Any]], name: str) -> Any:
    """The rewards of a name, or the sets; None where the record has none of that name."""
    if (key := (name, "")) not in case.statistics:
        case.statistics[key] = table[name](case)
    return case.statistics[key]


def _statistic(case: Case, rewards: str, name: str, of: str) -> F64 | None:
    """[R] a statistic of the rewards that count in each response's set; NaN of none."""
    if (key := (rewards, name, of)) in case.statistics:
        return case.statistics[key]
    numbers, sets = _part(case, _REWARDS, rewards), _part(case, _SETS, of)
    if numbers is None or sets is None:
        return None
    labels, counted = sets
    function = {**_CENTRES, **_SCALES}[name][0]
    values = np.full(len(numbers), np.nan)
    order = np.argsort(labels, kind="stable")
    seen: dict[bytes, F64 | float] = {}  # many groups have the rewards of another
    for rows in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
        members = rows[counted[rows]]
        own = numbers[members]
        if not len(own):
            continue
        if (same := own.tobytes()) not in seen:
            seen[same] = function(own)
        values[members if np.ndim(seen[same]) else rows] = seen[same]
    case.statistics[key] = values
    return values


def _advantages(case: Case, formula: Formula) -> F64 | None:
    """[R] by a formula; None where the record lacks what it reads."""
    (centre, of), (scale, by) = formula.centre, formula.scale
    rewards, sets = _part(case, _REWARDS, formula.rewards), _part(case, _SETS, of)
    middle = _statistic(case, formula.rewards, centre, of)
    spread = _statistic(case, formula.rewards, scale, by)
    if rewards is None or sets is None or middle is None or spread is None:
        return None
    eps = 0.0 if scale == "1" else formula.eps
    off = rewards - middle
    with np.errstate(all="ignore"):
        spread = np.sqrt(spread**2 + eps) if scale.startswith("root") else spread + eps
        found = np.where((off == 0.0) | (spread == 0.0), 0.0, off / spread)
    labels, counted = sets
    if centre == "0" or not (alone := np.bincount(labels, counted)[labels] == 1).any():
        return found
    lone = np.zeros_like(rewards) if formula.lone == _LONE[0] else rewards / (1.0 + eps)
    return np.where(alone, lone, found)


@cache
def _others(own: Formula, most: int = 2) -> Sequence[tuple[int, Formula]]:
    """Returns formulas and how many of their parts are other ones, those with the fewest first.

    Of the centre and the scale each is another statistic of the same set, or one of another set; a
    set that both have is one part.
    """
    (centre, of), (_, by) = own.centre, own.scale
    usual = (own.scale[0], "std (ddof 1)", "std (ddof 0)")
    choices: Sequence[Sequence[Any]] = (
        [*_REWARDS],
        [own.centre, *product(_CENTRES, (of, _GROUP)), *product(("mean", centre), _SETS)],
        [own.scale, *product(_SCALES, (by, _GROUP)), *product(usual, _SETS)],
        [*_LONE],
        [*EPS],
    )
    others = [
        [x for x in dict.fromkeys(part) if x != mine]
        for part, mine in zip(choices, own, strict=True)
    ]
    counted = []
    for many in range(1, most + 2):
        for parts in combinations(range(len(own)), many):
            for values in product(*(others[part] for part in parts)):
                one = own._replace(
                    **dict(zip((own._fields[part] for part in parts), values, strict=True))
                )
                if _is_double(one, own):
                    continue
                moved = of != one.centre[1] == one.scale[1] != by
                if many - (moved and {1, 2} <= {*parts}) <= most:
                    counted.append((many - moved, one))
    return sorted(counted, key=lambda pair: pair[0])


def _is_double(one: Formula, own: Formula) -> bool:
    """Whether a set or ε is another one that nothing is computed with."""
    return (
        (one.centre[0] == "0" and one.centre[1] not in (own.centre[1], _GROUP))
        or (one.scale[0] == "1" and one.scale[1] != own.scale[1])
        or (one.scale[0] == "1" and one.eps != own.eps)
    )


# ---- the causes ----------------------------------------------------------------------------------


_FLOAT32 = 1e-6
"""How far off advantages are at most that a trainer computed."""


def _own(case: Case, mine: F64) -> Formula | None:
    """The formula that gives the record's own advantages; of given ones, if it is a plain one."""
    advantage = case.objective.advantage
    stated = advantage.values.get("std_eps")
    most, room = (1, _FLOAT32) if advantage.choice.given else (2, 1e-11)
    for eps in EPS if stated is None else (float(stated),):
        base = Formula("", ("mean", _GROUP), ("std (ddof 1)", _GROUP), _LONE[0], eps)
        for one in (base, *(one for _, one in _others(base, most) if one.eps == eps)):
            if _off(case, one, mine) <= room:
                return one if one.scale[0] != "1" or stated is not None else one._replace(eps=1e-8)
    return None


def _off(case: Case, formula: Formula, wanted: F64) -> float:
    """How far a formula is at most from these advantages, where they are known."""
    made, known = _advantages(case, formula), np.isfinite(wanted)
    if made is None or not np.isfinite(made[known]).all():
        return np.inf
    size = float(np.abs(wanted[known]).max(initial=0.0))
    return float(np.abs(made - wanted)[known].max(initial=0.0)) / (size or 1.0)


def statistics(case: Case) -> Iterator[Cause]:
    """Yields formulas that differ in the fewest parts; of gradients, those that they speak for."""
    mine, rewards = case.breakdown.response_advantage, own_rewards(case)
    if mine is None or rewards is None or not case.other_advantages:
        return
    own, found = _own(case, mine), case.effective_advantages
    if own is None and case.objective.advantage.choice.given:
        return
    base = own or Formula("", ("mean", _GROUP), ("1", _GROUP), _LONE[0], 1e-8)
    tried = _others(base)
    if found is None:
        seen = {_rounded(mine)}
        for count, one in tried:
            if count < 2 or (one.rewards, one.lone, one.eps) == (base.rewards, base.lone, base.eps):
                made = _advantages(case, one)
                if made is not None and (count < 2 or _rounded(made) not in seen):
                    seen.add(_rounded(made))
                    yield _cause(case, one, base, equal=own is None)
        return
    found = np.where(may_be_clipped(case, found), np.nan, found)
    known = np.isfinite(found)
    size = float(np.abs(found[known]).max(initial=0.0))
    numbers = np.unique(np.round(np.abs(found[known]) / (1e-3 * (size or 1.0))))
    is_vague = own is None or len(numbers[numbers > 0]) < 2
    room = min(1e-3, 0.1 * _off(case, base, found)) if own else 1e-3
    fitting: list[tuple[float, Formula]] = []
    for _, alike in groupby(tried, lambda row: row[0]):
        offs = ((_off(case, one, found), one) for _, one in alike)
        fitting += [(off, one) for off, one in offs if off <= room]
        if fitting:  # other parts have to fit much better
            room = 0.1 * min(off for off, _ in fitting)
            if room <= _EXACT:
                break
    for _, one in sorted(fitting, key=lambda row: row[0]):
        is_plain = (one.rewards, one.lone) == (base.rewards, base.lone)
        yield _cause(case, one, base, equal=is_vague and not is_plain)


def _rounded(advantages: F64) -> bytes:
    """The same for advantages that give a record the same loss."""
    return (advantages + 0.0).astype(np.float32).tobytes()


def centres(case: Case) -> Iterator[Cause]:
    """Yields the advantages without a baseline, and with that of the other responses."""
    mine = case.breakdown.response_advantage
    if mine is None or own_rewards(case) is None:
        return
    own = _own(case, mine)
    for name in ("0", "mean of the others") if own else ():
        assert own is not None
        if name != own.centre[0]:
            yield _cause(case, own._replace(centre=(name, own.centre[1])), own, equal=False)


def shared_std(cases: Sequence[Case]) -> Iterator[Cause]:
    """Yields one std by which the advantages of all records are divided, as a batch has it."""
    rows = [(case, case.breakdown.response_advantage, _centred(case)) for case in cases]
    known = [(case, a, c) for case, a, c in rows if a is not None and c is not None and c.any()]
    if len(known) < len(cases):
        return
    found = np.array([_divided_by(case, c) for case, _, c in known])
    own = np.array([float(c @ c) / float(a @ c) for _, a, c in known])
    if np.isfinite(found).all() and np.ptp(found) <= 1e-4 * found.min() < np.ptp(found / own):
        std = float(np.median(found))
        one = f"one std in all records, {std:.5g} (batch-std)"
        words = f"advantages divided by {one}, not by the group's own"
        yield Cause("std-level", words, partial(_with_std, std=std), "advantage", for_all=True)


def _centred(case: Case) -> F64 | None:
    """[R] the rewards less the mean of their group."""
    rewards, middle = own_rewards(case), _statistic(case, "", "mean", _GROUP)
    return None if rewards is None or middle is None else rewards - middle


def _divided_by(case: Case, centred: F64) -> float:
    """What centred rewards are divided by in the gradient, or else in the loss."""
    one, silent = case.with_advantages(centred), case.without_policy
    if (wanted := case.expected_policy_gradient) is None:
        kl = float(silent.record_objective[0])
        return (float(one.record_objective[0]) - kl) / (float(case.losses[0]) - kl)
    made = one.gradient - silent.gradient
    return float(made @ made) / float(made @ wanted)


def _with_std(case: Case, std: float) -> Breakdown:
    centred = _centred(case)
    if centred is None:
        raise ValueError("there are no rewards")
    return case.with_advantages(centred / std)


_EXACT = 1e-5
"""A formula that is so near may be the one."""


def may_be_clipped(case: Case, found: F64) -> Flags:
    """[R] whether a response without gradient may have an advantage, of a sign that is clipped."""
    slopes = (case.batch.responses.sum(np.abs(slope)) for slope in case.unit_slopes)
    silent: Flags = np.logical_or.reduce([slope <= case.quiet for slope in slopes])
    return silent & (np.abs(found) <= 1e-6 * float(np.nanmax(np.abs(found), initial=0.0)))


def _cause(case: Case, formula: Formula, own: Formula, *, equal: bool) -> Cause:
    rows = _words(own, formula, case.objective.advantage.values)
    words = [of_part for _, of_part in rows]
    *simpler, whole = (
        ", and ".join(parts)
        for many in range(1, len(words) + 1)
        for parts in combinations(words, many)
    )
    made = partial(_with, formula=formula)
    cause = Cause(rows[0][0], whole, made, "advantage", equal, adds_to=(*simpler,))
    return cause._replace(by_record={formula.centre[1], formula.scale[1]} == {_GROUP})


def _with(case: Case, formula: Formula) -> Breakdown:
    made = _advantages(case, formula)
    if made is None or not np.isfinite(made).all():
        raise ValueError("the record lacks what the formula reads")
    return case.with_advantages(made)


_WHOLE = {
    (("0", _GROUP), ("1", _GROUP)): "centre.raw",
    (("mean", _GROUP), ("1", _GROUP)): "std-or-not.mean",
    (("mean", _BATCH), ("std (ddof 1)", _BATCH)): "batch-as-one-group.whiten",
}
"""Centre and scale → the mistake, of formulas that have a name."""


def _words(own: Formula, other: Formula, settings: Collection[str]) -> list[tuple[str, str]]:
    """The mistakes, and what each is called: the parts that are other ones."""
    rows: list[tuple[str, str]] = []
    if own.rewards != other.rewards:
        rows.append(worded(other.rewards))
    (centre, of), (scale, by) = other.centre, other.scale
    both = of == by and of != own.centre[1] and by != own.scale[1]
    same = centre == own.centre[0] and scale in (own.scale[0], "1")
    if own[1:3] != other[1:3] and other[1:3] in _WHOLE:
        rows.append(worded(_WHOLE[other[1:3]]))
    elif both and same:
        mistake, words = _set(of)
        is_stride = of.startswith(_STRIDE)
        words = words if is_stride else f"mean and std of the advantages are over {words}"
        rows.append((mistake, words))
    else:
        if own.centre != other.centre:
            rows.append(_of_centre(own, other))
        if own.scale != other.scale:
            (name, _), (meant, _) = other.scale, own.scale
            mistake, words = _of_scale(own, other, settings)
            if name.startswith("root") and meant.startswith("std") and name[-2] != meant[-2]:
                rows.append((mistake, _ddof(name, meant, settings)))
            rows.append((mistake, words))
    if own.lone != other.lone:
        rows.append(("singleton-group", f"a response that is alone in its group has {other.lone}"))
    if own.eps != other.eps and scale != "1":
        rows.append(("std-eps", other_value("std_eps", other.eps, own.eps, settings)))
    return rows


def _set(of: str) -> tuple[str, str]:
    """The mistake of another set of responses, "" of the group, and what the set is called."""
    return ("", of) if of == _GROUP else worded(of)


def _of_centre(own: Formula, other: Formula) -> tuple[str, str]:
    (name, of), moved = other.centre, other.centre[1] != own.centre[1]
    of_set, called = _set(of)
    mistake, words = worded(_CENTRES[name][1]) if _CENTRES[name][1] else ("centre", "")
    if of.startswith(_STRIDE) and moved and name == own.centre[0]:
        return of_set, called
    if name == "mean" and own.centre[0] == "mean of the others":
        mistake = "leave-one-out"
    if name != "0" and moved:
        mistake = of_set or mistake
    if of == _GROUP and words:
        return mistake, words
    if of == _BATCH and name == "mean":
        return mistake, f"centred on the mean of {called}"
    return mistake, f"baseline: the {name} of {called} instead of the {own.centre[0]}"


def _ddof(name: str, meant: str, settings: Collection[str]) -> str:
    ddof, other = float(name[-2]), float(meant[-2])
    return other_value("std_ddof", ddof, other, settings, called="ddof")


def _of_scale(own: Formula, other: Formula, settings: Collection[str]) -> tuple[str, str]:
    (name, by), ddof = other.scale, other.scale[0][-2:-1]
    (mistake, words), (of_set, called) = worded(_SCALES[name][1]), _set(by)
    if by == _BATCH and name.startswith("std"):
        more = ", ddof 0" if ddof == "0" else ""
        return "std-level", f"batch-std: divided by the std of the batch{more}"
    if name.startswith("std") and own.scale[0].startswith("std") and by == own.scale[1]:
        return "std-ddof", _ddof(name, own.scale[0], settings)
    if by == _GROUP or name == "1":
        return mistake, words
    return of_set or mistake, f"divided by the {name} of {called}"
