"""Advantages computed from rewards by another formula: another centre, another scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from grpo_cli.batch import F64, Batch
from grpo_cli.commands.verify.causes.case import Case, Cause
from grpo_cli.objective.breakdown import Breakdown

Statistic = Callable[[F64], F64 | float]


def _others(r: F64) -> F64:
    return (r.sum() - r) / max(len(r) - 1, 1)


def _std(r: F64, ddof: int) -> float:
    return float(r.std(ddof=ddof)) if len(r) > ddof else 0.0


# what is taken off the reward: (of the group or the whole record, the statistic, what is said)
_CENTRES: Mapping[str, tuple[bool, Statistic, str]] = {
    "mean": (True, np.mean, ""),
    "none": (True, lambda _: 0.0, "the rewards are not centred (no baseline)"),
    "median": (True, np.median, "centred on the group's median"),
    "others": (True, _others, "leave-one-out: centred on the mean of the others"),
    "batch": (False, np.mean, "centred on the mean of the batch, all groups together"),
}
_SCALES: Mapping[str, tuple[bool, Statistic, str]] = {
    "std 1": (True, partial(_std, ddof=1), "divided by the group's std"),
    "std 0": (True, partial(_std, ddof=0), "divided by the group's std"),
    "1": (True, lambda _: 1.0, "not divided by the std"),
    "var 1": (True, lambda r: _std(r, 1) ** 2, "divided by the variance (std²) for the std"),
    "var 0": (True, lambda r: _std(r, 0) ** 2, "divided by the variance (ddof 0) for the std"),
    "batch 1": (False, partial(_std, ddof=1), "batch-std: divided by the std of the batch"),
    "batch 0": (False, partial(_std, ddof=0), "batch-std: divided by the std of the batch, ddof 0"),
}
_EPS = (0.0, 1e-9, 1e-8, 1e-6, 1e-5, 1e-4)
_NAMES = {
    ("none", "1"): "the rewards as they are (raw) for advantages",
    ("mean", "1"): "group-mean: advantages not divided by the std",
    ("batch", "batch 1"): "batch-whiten: mean and std of the batch, groups ignored",
}
_OWN = {"group-mean": ("mean", "1"), "raw": ("none", "1"), "leave-one-out": ("others", "1")}


def formulas(case: Case) -> Iterator[Cause]:
    """Every other formula, those that differ in one respect first."""
    yield from _formulas(case, others=False)


def other_eps(case: Case) -> Iterator[Cause]:
    """The same with other numbers added to the std."""
    yield from _formulas(case, others=True)


def _formulas(case: Case, *, others: bool) -> Iterator[Cause]:
    own = case.objective.advantage
    if own.choice.given or case.batch.rewards is None or case.batch.rewards.ndim > 1:
        return
    if not case.other_advantages:
        return
    ddof, eps = own.values.get("std_ddof"), own.values.get("std_eps")
    mine = ("mean", f"std {ddof}") if ddof is not None else _OWN.get(own.name, ("", ""))
    pairs = [(centre, scale) for centre in _CENTRES for scale in _SCALES]
    pairs.sort(key=lambda pair: (pair[0] != mine[0]) + (pair[1] != mine[1]))
    usual = 1e-8 if eps is None else float(eps)
    for pair in pairs:
        for epsilon in _EPS if others else (usual,):
            if epsilon == usual and (others or pair == mine):
                continue
            if others and pair[1] == "1":  # has no eps
                continue
            words = _words(pair, mine, epsilon, eps)
            yield Cause("advantage", words, partial(_with, pair=pair, epsilon=epsilon))


def _words(pair: tuple[str, str], mine: tuple[str, str], epsilon: float, eps: object) -> str:
    parts = [_NAMES[pair]] if pair in _NAMES and pair != mine else _parts(pair, mine)
    if eps is not None and epsilon != eps and pair[1] != "1":
        parts.append(f"std_eps {epsilon:g} where {eps:g} is meant")
    return ", ".join(parts)


def _parts(pair: tuple[str, str], mine: tuple[str, str]) -> list[str]:
    parts = []
    if pair[0] != mine[0]:
        parts.append(_CENTRES[pair[0]][2] or "centred on the group's mean")
    if {pair[1], mine[1]} == {"std 0", "std 1"}:
        parts.append(f"ddof {pair[1][-1]} where {mine[1][-1]} is meant")
    elif pair[1] != mine[1]:
        ddof = f" (ddof {pair[1][-1]})" if pair[1].startswith("std") else ""
        parts.append(_SCALES[pair[1]][2] + ddof)
    return parts


def _with(case: Case, pair: tuple[str, str], epsilon: float) -> Breakdown:
    assert case.batch.rewards is not None
    rewards = case.batch.rewards
    offsets = rewards - _statistic(_CENTRES[pair[0]], rewards, case.batch)
    scale = _statistic(_SCALES[pair[1]], rewards, case.batch)
    scale = scale if pair[1] == "1" else scale + epsilon
    return case.judged(
        np.divide(offsets, scale, out=np.zeros_like(offsets), where=(offsets != 0) & (scale > 0))
    )


def _statistic(row: tuple[bool, Statistic, str], rewards: F64, batch: Batch) -> F64:
    """Of each group, or of each record: that is a batch of its own here."""
    grouped, statistic, _ = row
    sets = batch.groups if grouped else batch.records.index
    values = np.zeros_like(rewards)
    for one in np.unique(sets):
        values[sets == one] = statistic(rewards[sets == one])
    return values
