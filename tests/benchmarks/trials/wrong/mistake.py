"""A row of ``mistakes.csv``: a loss with one thing wrong, written as an expression.

``where`` says what the expression replaces, and so which names it has beside those of ``NAMES``;
``d`` is always the record as the loss sees it (``trials.trl.Data``), and ``draw`` the randomness:

- ``advantages``: [R], of ``a``, those given; ``token advantages``: [N], of ``a`` [N].
- ``rewards``: [G], of a group's ``r``; ``all rewards``: [R], of ``r`` and ``m``, groups' means.
- ``log ratio``: of ``t``, the current log-probs, and ``x``, the right one.
- ``policy``: what is maximised, of ``t``, ``rho``, ``a`` [N], the bounds ``low`` and ``high``.
- ``estimate``: of the KL, in place of ``k``; ``kl``: with its weight, of ``rho`` too.
- ``reduced``: of ``p``, ``k`` and ``loss``, their sum by token; ``denominator``: of their sum.
- ``finished``: of ``loss``; ``after``: loss and gradient, of both.
- ``tokens``: which tokens, and how often they count in the numerator.
- ``old``, ``new``, ``ref``, ``mask``: each row ``x`` of that column, as it is read; ``packed old``:
  all its rows at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from types import CodeType
from typing import Any

import numpy as np

from trials import tape
from trials import trl as right
from trials.product import Record
from trials.strangers.world import Random, bfloat16
from trials.tape import Var
from trials.trl import F64, RIGHT, Data, data, evaluate, expected

Outcome = tuple[float, F64]
Names = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """One thing done wrongly.

    Attributes:
        name: what was done.
        row: its name in the package's catalogue of mistakes.
        stage: a regular expression on the stage that has to be named.
        right: a regular expression on "stage … : causes" that names it: generous about wording,
            strict about substance. Everything else that is named as the cause is misleading.
        where: what is replaced.
        does: the expression.
        needs: whether a record has what it takes to see the mistake at all, in the same names.
    """

    name: str
    row: str
    stage: str
    right: str
    where: str
    does: str
    needs: str

    @property
    def rewarded(self) -> bool:
        """Whether advantages are computed from rewards (records with whole groups)."""
        return self.where.endswith("rewards")

    @cached_property
    def _code(self) -> CodeType:
        return compile(self.does, self.name, "eval")

    def value(self, **names: Any) -> Any:
        """What the expression gives."""
        return eval(self._code, NAMES | names)

    def can_show(self, d: Data) -> bool:
        return bool(eval(self.needs or "True", NAMES | {"d": d}))


def mistaken(mistake: Mistake, record: Record, random: Random) -> Record | None:
    """The record with what the wrong implementation gives; None where nobody could tell.

    A record tells where the loss or a gradient is off by more than 0.2 % of its scale: twenty times
    what ``verify`` allows for float32.
    """
    seen = data(record)
    if not mistake.can_show(seen):
        return None
    loss, gradient = evaluate(seen)
    as_read = data(_read(mistake, record))
    wrong = evaluate(as_read, _steps(mistake))
    if mistake.where == "after":
        wrong = mistake.value(d=seen, loss=wrong[0], gradient=wrong[1])
    if mistake.where == "tokens":
        wrong = _weighted(seen, wrong, *mistake.value(d=seen, draw=random))
    if not (np.isfinite(wrong[0]) and np.isfinite(wrong[1]).all()):
        return None
    off = laid(as_read, wrong[1]) - laid(seen, gradient)
    apart = np.abs(off).max() > 2e-3 * np.abs(gradient).max()
    if not apart and abs(wrong[0] - loss) <= 2e-3 * abs(loss) + 1e-4:
        return None
    made = {key: value for key, value in record.items() if key != "expected"}
    return {**made, "expected": expected(as_read, *wrong)}


def laid(seen: Data, gradient: F64) -> F64:
    """The gradient at every token as written, 0 where it is masked."""
    whole = np.zeros(len(seen.kept))
    whole[seen.kept] = gradient
    return whole


def _steps(mistake: Mistake) -> right.Steps:
    """The steps of the loss, of which one may be another."""
    value = mistake.value

    def by_group(d: Data) -> F64:
        found = np.zeros(d.count)
        for group in np.unique(d.groups):
            own = d.groups == group
            found[own] = value(d=d, r=d.rewards[own])
        return found[d.index]

    def of_all(d: Data) -> F64:
        means = np.array([d.rewards[d.groups == group].mean() for group in d.groups])
        return value(d=d, r=d.rewards, m=means)[d.index]

    def policy(d: Data, t: Var, rho: Var, a: F64) -> Var:
        low, high = right.bounds(d)
        return -value(d=d, t=t, rho=rho, a=a, low=low, high=high)

    def estimate(d: Data, t: Var, rho: Var) -> Var:
        weight = rho if d.framework.get("use_bias_correction_kl") else 1.0
        return d.hyper["beta"] * value(d=d, t=t, k=right.k3(d, t)) * weight

    made: dict[str, tuple[str, Callable[..., Any]]] = {
        "advantages": (
            "advantage",
            lambda d: np.asarray(value(d=d, a=d.advantages), float)[d.index],
        ),
        "token advantages": ("advantage", lambda d: value(d=d, a=d.advantages[d.index])),
        "rewards": ("advantage", by_group),
        "all rewards": ("advantage", of_all),
        "log ratio": ("log_ratio", lambda d, t: value(d=d, t=t, x=right.log_ratio(d, t))),
        "policy": ("policy", policy),
        "estimate": ("kl", estimate),
        "kl": ("kl", lambda d, t, rho: value(d=d, t=t, rho=rho, k=right.k3(d, t))),
        "reduced": ("reduce", lambda d, p, k: value(d=d, p=p, k=k, loss=p + k)),
        "denominator": ("reduce", lambda d, p, k: (p + k).sum() / value(d=d)),
        "finished": ("finish", lambda d, loss: value(d=d, loss=loss)),
    }
    step = made.get(mistake.where)
    return replace(RIGHT, **{step[0]: step[1]}) if step else RIGHT


def _read(mistake: Mistake, record: Record) -> Record:
    """The record as the wrong implementation reads it."""
    if mistake.where == "mask":
        shape = record[_key(record, "new")]
        mask = record.get("completion_mask") or [[1] * len(row) for row in shape]
        made = [mistake.value(x=np.asarray(row)).astype(int).tolist() for row in mask]
        return {**record, "completion_mask": made}
    name = mistake.where.removeprefix("packed ")
    key = _key(record, name) if name in right.NAMES else ""
    if not key:
        return record
    rows = [np.asarray(row, dtype=float) for row in record[key]]
    if name != mistake.where:
        ends = np.cumsum([len(row) for row in rows])[:-1]
        made = np.split(mistake.value(x=np.concatenate(rows)), ends)
    else:
        made = [np.asarray(mistake.value(x=row)) for row in rows]
    return {**record, key: [row.tolist() for row in made]}


def _key(record: Record, column: str) -> str:
    return next((key for key in right.NAMES[column] if key in record), "")


def _weighted(d: Data, outcome: Outcome, which: np.ndarray, factor: float) -> Outcome:
    """Some tokens count ``factor`` times in the numerator; the denominator stays."""
    weight = np.where(which, factor, 1.0)
    new = Var(d.new)
    ratio = np.exp(RIGHT.log_ratio(d, new))
    policy = RIGHT.policy(d, new, ratio, RIGHT.advantage(d)) * (weight - 1.0)
    kl = RIGHT.kl(d, new, ratio) * (weight - 1.0)
    more = float(RIGHT.finish(d, RIGHT.reduce(d, policy, kl)).value)
    return outcome[0] + more, outcome[1] * weight


# ---- what expressions call -----------------------------------------------------------------------


def kind(d: Data) -> str:
    return str(d.framework["loss_type"])


def clips(d: Data) -> bool:
    """A surrogate that clips; cispo's weight is another."""
    return kind(d) != "cispo"


def by_token(d: Data) -> bool:
    return d.framework["importance_sampling_level"] == "token" and clips(d)


def by_sequence(d: Data) -> bool:
    return d.framework["importance_sampling_level"] == "sequence"


def with_kl(d: Data) -> bool:
    return bool(d.hyper["beta"]) and bool(np.abs(d.ref - d.new).max() > 0.01)


def weighted(d: Data) -> bool:
    return bool(d.framework.get("use_bias_correction_kl"))


def moved(d: Data) -> bool:
    return bool(np.abs(d.new - d.old).max() > 0.01)


def both_sides(d: Data, factor: float) -> bool:
    """Whether two tokens on either side tell ``factor`` times the ε from the right one."""
    low, high = sorted((1.0, factor))
    ratio, a = np.exp(d.new - d.old), d.advantages[d.index]
    under = (1.0 - ratio[a < 0]) / d.hyper["epsilon_low"]
    over = (ratio[a > 0] - 1.0) / d.hyper["epsilon_high"]
    counts = [int(((off > low) & (off < high)).sum()) for off in (under, over)]
    return by_token(d) and min(counts) >= 2


def clip(d: Data, x: Var, a: F64) -> Var:
    """The right clip, of another quantity than the ratio."""
    return tape.least(x * a, tape.clamp(x, *right.bounds(d)) * a)


def response_sums(d: Data, x: Var) -> Var:
    return tape.rows(x, d.index, d.count)


def mean_over(d: Data, t: Var, divisor: Any) -> Var:
    """The log ratio's sum over each response, divided."""
    return tape.spread(response_sums(d, t - d.old) / divisor, d.index)


def steep(d: Data, t: Var) -> Var:
    """The sequence's ratio; the gradient of its sum, not of its mean."""
    sums = response_sums(d, t - d.old)
    whole = tape.stop(sums / d.lengths) + (sums - tape.stop(sums))
    return tape.spread(whole, d.index)


def truncated(d: Data, loss: Var) -> Var:
    """Masked tokens left the numerator, but not the denominator (trl#6369)."""
    written = np.maximum(d.written.astype(float), 1.0)
    if kind(d) == "grpo":
        return (loss / written[d.index]).sum() / d.count
    return loss.sum() / float(d.written.sum())


def halves(d: Data, loss: Var) -> Var:
    """Each half of the responses divides by its own tokens (SkyRL#1296)."""
    number = np.minimum(np.arange(d.count) * 2 // d.count, 1)
    tokens = np.bincount(number[d.index], minlength=2).astype(float)
    return (loss / np.maximum(tokens, 1.0)[number[d.index]]).sum() / 2.0


def prompts(d: Data) -> float:
    """Not a number where each response has a prompt of its own."""
    count = len(np.unique(d.groups))
    return float(count) if count < d.count else np.nan


def places_left(d: Data) -> F64:
    return np.concatenate([np.arange(n)[::-1] for n in np.bincount(d.index)])


def loudest(d: Data, draw: Random) -> np.ndarray:
    """One of the tokens with the largest advantages."""
    loud = np.argsort(-np.abs(d.advantages[d.index]))[: max(1, len(d.new) // 3)]
    return np.arange(len(d.new)) == draw.choice(loud)


def loudest_row(d: Data) -> np.ndarray:
    counts = np.bincount(d.index, minlength=d.count) > 0
    return d.index == np.argmax(np.abs(d.advantages) * counts)


NAMES: Names = {
    "np": np,
    "bfloat16": bfloat16,
    "last": lambda d: np.diff(d.index, append=-1) != 0,
    "first": lambda d: np.diff(d.index, prepend=-1) != 0,
    "k3": lambda change: np.exp(change) - change - 1.0,
    "widest": lambda d: float(d.written.max()),
    "steps": lambda d: float(d.hyper.get("gradient_accumulation_steps", 1)),
    "without_last": lambda mask: np.where(np.arange(len(mask)) == mask.nonzero()[0].max(), 0, mask),
    **{name: getattr(tape, name) for name in ("stop", "clamp", "through", "least", "most")},
    **{name: getattr(right, name) for name in ("accumulated", "bounds", "log_ratio", "reduced")},
    **{
        one.__name__: one
        for one in (
            *(kind, clips, by_token, by_sequence, with_kl, weighted, moved, both_sides, clip),
            *(response_sums, mean_over, steep, truncated, halves, prompts, places_left),
            *(loudest, loudest_row),
        )
    },
}
