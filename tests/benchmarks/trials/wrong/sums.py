"""Advantages, denominators, tokens and columns that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trials.product import Record
from trials.simulate.policies import F64, Random, bfloat16
from trials.tape import Var
from trials.trl import NAMES, RIGHT, Data, accumulated, reduced
from trials.wrong.terms import Outcome, Plant, clipped, on, token_level, with_kl

# ---- advantages ----------------------------------------------------------------------------------


def _given(change: Callable[[F64], Any], needs: Any = Plant.needs) -> Plant:
    """The advantages changed on the way."""
    return on("advantage", lambda d: np.asarray(change(d.advantages), float)[d.index], needs)


def _from(judge: Callable[[F64], F64]) -> Plant:
    """The advantages of each group by another formula."""

    def advantage(data: Data) -> F64:
        assert data.rewards is not None
        found = np.zeros(data.count)
        for group in np.unique(data.groups):
            own = data.groups == group
            found[own] = judge(data.rewards[own])
        return found[data.index]

    return on("advantage", advantage, rewarded=True)


def _scaled_by(scale: Callable[[F64], float]) -> Plant:
    """(r − mean)/scale(r) of each group."""
    return _from(lambda r: (r - r.mean()) / scale(r))


def _left_out(r: F64) -> F64:
    return (r - (r.sum() - r) / (len(r) - 1)) / (r.std(ddof=1) + 1e-4)


def _batch_std(data: Data) -> F64:
    assert data.rewards is not None
    means = np.array([data.rewards[data.groups == group].mean() for group in data.groups])
    return ((data.rewards - means) / (data.rewards.std(ddof=1) + 1e-4))[data.index]


def _batch_mean(data: Data) -> F64:
    assert data.rewards is not None
    r = data.rewards
    return ((r - r.mean()) / (r.std(ddof=1) + 1e-4))[data.index]


def _discounted(data: Data) -> F64:
    places = np.concatenate([np.arange(n)[::-1] for n in np.bincount(data.index)])
    return data.advantages[data.index] * 0.95**places


ADVANTAGES = {
    "advantages negated": _given(lambda a: -a),
    "advantages rolled by one row": _given(lambda a: np.roll(a, 1)),
    "advantages in reverse order": _given(lambda a: a[::-1]),
    "advantages whitened over the batch": _given(
        lambda a: (a - a.mean()) / (a.std(ddof=1) + 1e-8),
        lambda d: abs(d.advantages.mean()) > 0.05,  # else it is a plain factor
    ),
    "advantages clipped to ±0.5": _given(lambda a: np.clip(a, -0.5, 0.5)),
    "advantages centred on the median": _given(lambda a: a - np.median(a)),
    "advantages' absolute values": _given(np.abs),
    "only positive advantages": _given(lambda a: np.maximum(a, 0.0)),
    "the first response's advantage for all": _given(lambda a: np.full_like(a, a[0])),
    "advantages in bfloat16": _given(bfloat16),
    "no advantages": _given(np.ones_like),
    "advantages and a quarter": _given(lambda a: a + 0.25),
    "advantages weighted by length": on(
        "advantage", lambda d: (d.advantages * d.lengths / d.lengths.mean())[d.index]
    ),
    "advantages discounted by position": on("advantage", _discounted),
    "ddof 0": _scaled_by(lambda r: r.std() + 1e-4),
    "no std": _scaled_by(lambda r: 1.0),
    "variance for std": _scaled_by(lambda r: r.var(ddof=1) + 1e-4),
    "range for std": _scaled_by(lambda r: float(np.ptp(r)) + 1e-4),
    "mean deviation for std": _scaled_by(lambda r: float(np.abs(r - r.mean()).mean()) + 1e-4),
    "ε inside the root": _scaled_by(lambda r: float(np.sqrt(r.var(ddof=1) + 1e-2))),
    "rewards as they are": _from(lambda r: r),
    "not centred, but divided by the std": _from(lambda r: r / (r.std(ddof=1) + 1e-4)),
    "median of the rewards for their mean": _from(
        lambda r: (r - np.median(r)) / (r.std(ddof=1) + 1e-4)
    ),
    "leave-one-out mean, and divided by the std": _from(_left_out),
    "leave-one-out": _from(lambda r: (r - r.mean()) * len(r) / (len(r) - 1)),
    "std of the batch": on("advantage", _batch_std, rewarded=True),
    "mean and std of the batch": on("advantage", _batch_mean, rewarded=True),
}


# ---- denominators and accumulation ---------------------------------------------------------------


def _type(data: Data) -> str:
    return str(data.framework["loss_type"])


def _as(kind: str, *unless: str) -> Plant:
    return on("reduce", lambda d, p, k: reduced(d, p + k, kind), lambda d: _type(d) not in unless)


def _over(size: Callable[[Data], float], *unless: str, needs: Any = None) -> Plant:
    """Σ over tokens / size."""
    needs = needs or (lambda d: _type(d) not in unless)
    return on("reduce", lambda d, p, k: (p + k).sum() / size(d), needs)


def _each_over(divisor: Callable[[F64], F64]) -> Plant:
    """mean_i Σ_t / divisor(n_i)"""

    def made(data: Data, policy: Var, kl: Var) -> Var:
        return ((policy + kl) / divisor(data.lengths)[data.index]).sum() / data.count

    return on("reduce", made, lambda d: _type(d) == "grpo")


def _widest(data: Data) -> float:
    return float(data.written.max())


def _truncated(data: Data, policy: Var, kl: Var) -> Var:
    """Masked tokens left the numerator, but not the denominator (trl#6369)."""
    loss = policy + kl
    written = np.maximum(data.written.astype(float), 1.0)
    if _type(data) == "grpo":
        return (loss / written[data.index]).sum() / data.count
    return loss.sum() / float(data.written.sum())


def _halves(data: Data, policy: Var, kl: Var) -> Var:
    """Each half of the responses divides by its own tokens (SkyRL#1296)."""
    number = np.minimum(np.arange(data.count) * 2 // data.count, 1)
    tokens = np.bincount(number[data.index], minlength=2).astype(float)
    return ((policy + kl) / np.maximum(tokens, 1.0)[number[data.index]]).sum() / 2.0


def _all_but_one(data: Data, policy: Var, kl: Var) -> Var:
    return reduced(data, policy + kl, _type(data)) * (data.count / (data.count - 1))


def _prompts(data: Data) -> float:
    """Not a number where each response has a prompt of its own."""
    count = len(np.unique(data.groups))
    return float(count) if count < data.count else np.nan


def _filled(data: Data, policy: Var, kl: Var) -> Var:
    kept = len(np.unique(data.index))
    return reduced(data, policy + kl, "grpo") * (data.count / kept)


def _times(factor: Callable[[Data], float], needs: Any = Plant.needs) -> Plant:
    return on("finish", lambda d, loss: loss * (factor(d) / accumulated(d)), needs)


def _steps(data: Data) -> float:
    return float(data.hyper.get("gradient_accumulation_steps", 1))


def _scaled(loss: float, gradient: float) -> Plant:
    return Plant(after=lambda data, outcome, random: (outcome[0] * loss, outcome[1] * gradient))


REDUCTIONS = {
    "mean over responses for another reduction": _as("grpo", "grpo"),
    "mean over the micro-batch's tokens": _as("bnpo", "bnpo", "dapo", "cispo"),
    "sum over tokens": _over(lambda d: 1.0),
    "sum over tokens, mean over responses": _over(lambda d: float(d.count)),
    "constant length for the denominator": _as("dr_grpo", "dr_grpo"),
    "mean over padded positions": _over(
        lambda d: d.count * _widest(d),
        needs=lambda d: _type(d) != "dr_grpo" and _widest(d) < d.hyper["max_completion_length"],
    ),
    "the longest response for the constant length": _over(
        lambda d: d.count * _widest(d), "grpo", "bnpo", "dapo", "cispo"
    ),
    "local count of tokens for the generation batch's": _as("bnpo", "grpo", "bnpo", "dr_grpo"),
    "masked tokens in the denominator": on(
        "reduce", _truncated, lambda d: not d.kept.all() and _type(d) in ("grpo", "bnpo")
    ),
    "the mean of two micro-batches' token means": on("reduce", _halves, lambda d: d.count >= 4),
    "B − 1 for B": on("reduce", _all_but_one),
    "L − 1 for L": _each_over(lambda n: np.maximum(n - 1.0, 1.0)),
    "the root of L for L": _each_over(np.sqrt),
    "the length once more": on(
        "reduce",
        lambda d, p, k: ((p + k) * d.lengths[d.index]).sum() / d.count,
        lambda d: _type(d) in ("grpo", "bnpo"),
    ),
    "the longest response alone": _over(_widest),
    "prompts for responses": _over(_prompts),
    "a constant length without responses": _over(lambda d: float(d.hyper["max_completion_length"])),
    "only responses with tokens counted": on(
        "reduce",
        _filled,
        lambda d: _type(d) == "grpo" and len(np.unique(d.index)) < d.count,
    ),
    "not divided by the accumulation steps": on(
        "finish", lambda d, loss: loss * 1.0, lambda d: _steps(d) > 1 and accumulated(d) > 1
    ),
    "divided by the accumulation steps twice": _times(
        lambda d: 1.0 / _steps(d), lambda d: _steps(d) > 1
    ),
    "a plain factor of 1.7": _times(lambda d: 1.7),
    "a plain factor of 0.3": _times(lambda d: 0.3),
    "the objective for the loss": _times(lambda d: -1.0),
    "the loss right, its gradient four times as large": _scaled(1.0, 4.0),
    "the gradient right, the loss four times as large": _scaled(4.0, 1.0),
}


# ---- tokens and responses that are lost, or counted twice ----------------------------------------


def _rows(pick: Callable[[Data, Random], np.ndarray], factor: float) -> Plant:
    """Some tokens count ``factor`` times in the numerator; the denominator stays."""

    def after(data: Data, outcome: Outcome, random: Random) -> Outcome:
        loss, gradient = outcome
        weight = np.where(pick(data, random), factor, 1.0)
        return loss + _part(data, weight - 1.0), gradient * weight

    return Plant(after=after)


def _part(data: Data, weight: F64) -> float:
    """What the loss gains when the tokens' shares of it are taken ``weight`` times more."""
    new = Var(data.new)
    ratio = np.exp(RIGHT.log_ratio(data, new))
    policy = RIGHT.policy(data, new, ratio, RIGHT.advantage(data)) * weight
    kl = RIGHT.kl(data, new, ratio) * weight
    return float(RIGHT.finish(data, RIGHT.reduce(data, policy, kl)).value)


def _last(data: Data, random: Random) -> np.ndarray:
    return np.diff(data.index, append=-1) != 0


def _first(data: Data, random: Random) -> np.ndarray:
    return np.diff(data.index, prepend=-1) != 0


def _one_token(data: Data, random: Random) -> np.ndarray:
    loud = np.argsort(-np.abs(data.advantages[data.index]))[: max(1, len(data.new) // 3)]
    return np.arange(len(data.new)) == random.choice(loud)


def _one_row(data: Data, random: Random) -> np.ndarray:
    counts = np.bincount(data.index, minlength=data.count) > 0
    return data.index == np.argmax(np.abs(data.advantages) * counts)


TOKENS = {
    "last tokens dropped": _rows(_last, 0.0),
    "first tokens dropped": _rows(_first, 0.0),
    "last tokens doubled": _rows(_last, 2.0),
    "last tokens alone": _rows(lambda data, random: ~_last(data, random), 0.0),
    "one token dropped": _rows(_one_token, 0.0),
    "one token doubled": _rows(_one_token, 2.0),
    "a response dropped": _rows(_one_row, 0.0),
    "a response doubled": _rows(_one_row, 2.0),
}


# ---- columns and masks ---------------------------------------------------------------------------


def _key(record: Record, column: str) -> str:
    return next((key for key in NAMES[column] if key in record), "")


def _column(column: str, change: Callable[[F64], Any], needs: Any = clipped) -> Plant:
    """A column whose rows are changed as they are read."""

    def read(record: Record) -> Record:
        key = _key(record, column)
        if not key:
            return record
        made = [np.asarray(change(np.asarray(row, dtype=float))).tolist() for row in record[key]]
        return {**record, key: made}

    return Plant(read=read, needs=needs)


def _packed(record: Record) -> Record:
    key = _key(record, "old")
    lengths = [len(row) for row in record[key]]
    flat = np.roll(np.concatenate([np.asarray(row, dtype=float) for row in record[key]]), -1)
    return {**record, key: [x.tolist() for x in np.split(flat, np.cumsum(lengths)[:-1])]}


def _mask(change: Callable[[F64], F64], *, masked: bool = True) -> Plant:
    def read(record: Record) -> Record:
        shape = record[_key(record, "new")]
        mask = record.get("completion_mask") or [[1] * len(row) for row in shape]
        made = [change(np.asarray(row)).astype(int).tolist() for row in mask]
        return {**record, "completion_mask": made}

    return Plant(read=read, needs=lambda d: not masked or not d.kept.all())


def _without_last(mask: F64) -> F64:
    made = mask.copy()
    made[np.flatnonzero(mask)[-1:]] = 0
    return made


COLUMNS = {
    "old log-probs one later": _column("old", lambda x: np.concatenate([x[:1], x[:-1]])),
    "old log-probs one earlier": _column("old", lambda x: np.concatenate([x[1:], x[-1:]])),
    "old log-probs packed, one off": Plant(read=_packed, needs=clipped),
    "old log-probs in bfloat16": _column("old", bfloat16),
    "new log-probs in bfloat16": _column("new", bfloat16),
    "old log-probs filled with 0": _column("old", lambda x: 0 * x),
    "old log-probs at temperature 0.8": _column("old", lambda x: x / 0.8, token_level),
    "reference's log-probs at temperature 1.25": _column("ref", lambda x: x / 1.25, with_kl),
    "no mask": _mask(np.ones_like),
    "mask one later": _mask(lambda mask: np.concatenate([[0], mask[:-1]])),
    "last tokens masked": _mask(_without_last, masked=False),
}
