"""Advantages taken wrongly: given ones changed on the way, or computed from rewards otherwise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trials.simulate.policy import F64
from trials.trl.data import Data
from trials.wrong.mistake import Mistake

Change = Callable[[F64], F64]


def _given(
    name: str, right: str, change: Change, needs: Callable[[Data], bool] = lambda data: True
) -> Mistake:
    def advantage(data: Data) -> F64:
        return change(data.advantages)[data.index]

    return Mistake(name, right, {"advantage": advantage}, needs=needs)


def _from(name: str, right: str, judge: Callable[[F64], F64]) -> Mistake:
    """The advantages of each group by another formula."""

    def advantage(data: Data) -> F64:
        assert data.rewards is not None
        found = np.zeros(data.count)
        for group in np.unique(data.groups):
            own = data.groups == group
            found[own] = judge(data.rewards[own])
        return found[data.index]

    return Mistake(name, right, {"advantage": advantage}, rewarded=True)


def _whitened(a: F64) -> F64:
    return (a - a.mean()) / (a.std(ddof=1) + 1e-8)


def _left_out(r: F64) -> F64:
    mean = (r.sum() - r) / (len(r) - 1)
    return (r - mean) / (r.std(ddof=1) + 1e-4)


def _batch_std(data: Data) -> F64:
    assert data.rewards is not None
    means = np.array([data.rewards[data.groups == group].mean() for group in data.groups])
    return ((data.rewards - means) / (data.rewards.std(ddof=1) + 1e-4))[data.index]


def _batch_mean(data: Data) -> F64:
    assert data.rewards is not None
    r = data.rewards
    return ((r - r.mean()) / (r.std(ddof=1) + 1e-4))[data.index]


def _by_length(data: Data) -> F64:
    return (data.advantages * data.lengths / data.lengths.mean())[data.index]


def _discounted(data: Data) -> F64:
    places = np.concatenate([np.arange(n)[::-1] for n in np.bincount(data.index)])
    return data.advantages[data.index] * 0.95**places


_ADVANTAGE = r"advantages?\b"
_LOO = rf"leave.one.out|rloo|{_ADVANTAGE}.*others|times 1\.2\b"  # six of a group: 6/5

ADVANTAGES = (
    _given(
        "advantages negated",
        r"sign of the (advantage|reward)|wrong sign|negat|opposite sign",
        lambda a: -a,
    ),
    _given(
        "advantages rolled by one row",
        rf"{_ADVANTAGE}.*(permut|order|roll|shift|other (row|response)|another (row|response))|"
        r"(permut|reorder|shuffl|roll)\w* .*advantage",
        lambda a: np.roll(a, 1),
    ),
    _given(
        "advantages in reverse order",
        rf"{_ADVANTAGE}.*(permut|order|revers|other (row|response)|another (row|response))|"
        r"(permut|reorder|shuffl|revers)\w* .*advantage",
        lambda a: a[::-1].copy(),
    ),
    _given(
        "advantages whitened over the batch",
        rf"whiten|{_ADVANTAGE}.*(normalis|standardis|twice|again)",
        _whitened,
        lambda d: abs(d.advantages.mean()) > 0.05,  # else it is a plain factor
    ),
    _given(
        "advantages clipped to ±0.5",
        rf"{_ADVANTAGE}.*(clip|clamp|bounded|capped)|(clip|clamp)\w* .*advantage",
        lambda a: np.clip(a, -0.5, 0.5),
    ),
    _given(
        "advantages centred on the median",
        rf"median|{_ADVANTAGE}.*(shifted|constant|centre|offset|baseline)",
        lambda a: a - np.median(a),
    ),
    _given(
        "advantages' absolute values",
        rf"\|A\||absolute|{_ADVANTAGE}.*(sign (is )?(lost|dropped|missing)|without (their )?sign)",
        np.abs,
    ),
    _given(
        "only positive advantages",
        rf"positive|A ?< ?0|negative {_ADVANTAGE}.*(dropped|0|missing|ignored)|relu",
        lambda a: np.maximum(a, 0.0),
    ),
    _given(
        "the first response's advantage for all",
        rf"first|broadcast|one {_ADVANTAGE}|same {_ADVANTAGE}",
        lambda a: np.full_like(a, a[0]),
    ),
    Mistake(
        "advantages weighted by length",
        # of response means that is the mean over tokens
        rf"length|{_ADVANTAGE}.*tokens of|weight|bnpo|token-mean",
        {"advantage": _by_length},
    ),
    Mistake(
        "advantages discounted by position",
        r"discount|gamma|position|decay",
        {"advantage": _discounted},
    ),
    _from(
        "ddof 0",
        r"ddof.{0,3}0|population std|biased std",
        lambda r: (r - r.mean()) / (r.std() + 1e-4),
    ),
    _from(
        "no std",
        r"group-mean|without (the )?std|not divided|no std|std (is )?missing|grpo_nostd|dr_?grpo",
        lambda r: r - r.mean(),
    ),
    _from(
        "variance for std",
        r"varianc|std squared|σ²|std\*\*2",
        lambda r: (r - r.mean()) / (r.var(ddof=1) + 1e-4),
    ),
    _from(
        "rewards as they are",
        r"\braw\b|rewards? (as (they|it)|for advantages|itself)|no baseline",
        lambda r: r,
    ),
    _from(
        "not centred, but divided by the std",
        r"not cent|without (the )?mean|mean (is )?(missing|not)|baseline (is )?missing",
        lambda r: r / (r.std(ddof=1) + 1e-4),
    ),
    _from(
        "median of the rewards for their mean",
        r"median",
        lambda r: (r - np.median(r)) / (r.std(ddof=1) + 1e-4),
    ),
    _from("leave-one-out mean, and divided by the std", _LOO, _left_out),
    _from("leave-one-out", _LOO, lambda r: (r - r.mean()) * len(r) / (len(r) - 1)),
    Mistake(
        "std of the batch",
        r"batch-std|batch.*std|std.*(batch|all groups)|scale_rewards.*batch|lite",
        {"advantage": _batch_std},
        rewarded=True,
    ),
    Mistake(
        "mean and std of the batch",
        r"batch-whiten|whiten|batch.*mean|mean.*(batch|all groups)|groups? (is |are )?ignored",
        {"advantage": _batch_mean},
        rewarded=True,
    ),
)
