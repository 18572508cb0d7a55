"""A wrong implementation, and the words that name it; ratios, clips and KL terms taken wrongly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trials import tape
from trials.product import Record
from trials.simulate.policies import F64, Random
from trials.tape import Var
from trials.trl import RIGHT, Data, bounds, data, evaluate, expected, k3, kl, log_ratio, reduced

Outcome = tuple[float, F64]


@dataclass(frozen=True)
class Plant:
    """How a loss is wrong.

    Attributes:
        steps: the steps of the loss that are replaced.
        after: what is done to loss and gradient at the end, instead.
        read: the record as the wrong implementation reads it.
        rewarded: the advantages are computed from rewards (records with whole groups).
        needs: whether a record has what it takes to see the mistake at all.
    """

    steps: dict[str, Callable[..., Any]] | None = None
    after: Callable[[Data, Outcome, Random], Outcome] | None = None
    read: Callable[[Record], Record] | None = None
    rewarded: bool = False
    needs: Callable[[Data], bool] = lambda data: True


@dataclass(frozen=True, kw_only=True)
class Mistake(Plant):
    """One thing done wrongly, a row of ``mistakes.csv``.

    Attributes:
        name: what was done.
        row: its name in the package's catalogue of mistakes.
        stage: a regular expression on the stage that has to be named.
        right: a regular expression on "stage … : causes" that names it: generous about wording,
            strict about substance. Everything else that is named as the cause is misleading.
    """

    name: str
    row: str
    stage: str
    right: str


def mistaken(mistake: Mistake, record: Record, random: Random) -> Record | None:
    """The record with what the wrong implementation gives; None where nobody could tell.

    A record tells where the loss or a gradient is off by more than 0.2 % of its scale: twenty times
    what ``verify`` allows for float32.
    """
    seen = data(record)
    if not mistake.needs(seen):
        return None
    loss, gradient = evaluate(seen)
    steps = replace(RIGHT, **mistake.steps) if mistake.steps else RIGHT
    as_read = data(mistake.read(record)) if mistake.read else seen
    wrong = evaluate(as_read, steps)
    if mistake.after:
        wrong = mistake.after(seen, wrong, random)
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


def with_kl(data: Data) -> bool:
    return bool(data.hyper["beta"]) and bool(np.abs(data.ref - data.new).max() > 0.01)


def clipped(data: Data) -> bool:
    """A surrogate that clips; cispo's weight is another."""
    return data.framework["loss_type"] != "cispo"


def token_level(data: Data) -> bool:
    return data.framework["importance_sampling_level"] == "token" and clipped(data)


def sequence_level(data: Data) -> bool:
    return data.framework["importance_sampling_level"] == "sequence"


def cispo(data: Data) -> bool:
    return not clipped(data)


def moved(data: Data) -> bool:
    return bool(np.abs(data.new - data.old).max() > 0.01)


def on(step: str, made: Callable[..., Any], needs: Any = Plant.needs, **more: Any) -> Plant:
    """A step of the loss replaced."""
    return Plant({step: made}, needs=needs, **more)


# ---- ratios, clips and KL terms taken wrongly, or for something else -----------------------------


# ---- the ratio -----------------------------------------------------------------------------------


def _ratio(made: Callable[[Data, Var], Var], needs: Any = token_level) -> Plant:
    return on("log_ratio", made, needs)


def _mean_over(divisor: Callable[[Data], Any]) -> Callable[[Data, Var], Var]:
    def made(data: Data, new: Var) -> Var:
        sums = tape.rows(new - data.old, data.index, data.count)
        return tape.spread(sums / divisor(data), data.index)

    return made


def _steep(data: Data, new: Var) -> Var:
    """The sequence's ratio; the gradient of its sum, not of its mean."""
    sums = tape.rows(new - data.old, data.index, data.count)
    whole = tape.stop(sums / data.lengths) + (sums - tape.stop(sums))
    return tape.spread(whole, data.index)


def _off_policy(data: Data) -> bool:
    return clipped(data) and moved(data)


RATIOS = {
    "ratio inverted": _ratio(lambda d, t: -log_ratio(d, t), _off_policy),
    "old taken from new, detached": _ratio(lambda d, t: t - tape.stop(t), _off_policy),
    "old taken from new, with its gradient": _ratio(lambda d, t: t - t, _off_policy),
    "ratio to the reference": _ratio(lambda d, t: t - d.ref, lambda d: clipped(d) and with_kl(d)),
    "sequence ratio for the token's": _ratio(_mean_over(lambda d: d.lengths)),
    "token ratio for the sequence's": _ratio(lambda d, t: t - d.old, sequence_level),
    "product for the geometric mean": _ratio(_mean_over(lambda d: 1.0), sequence_level),
    "base 2": _ratio(lambda d, t: log_ratio(d, t) * float(np.log(2.0))),
    "log ratio bounded at 0.3": _ratio(lambda d, t: tape.clamp(t - d.old, -0.3, 0.3)),
    "sequence's ratio over the width": _ratio(
        _mean_over(lambda d: np.full(d.count, float(d.written.max()))), sequence_level
    ),
    "sequence's gradient without 1/L": _ratio(_steep, sequence_level),
}


# ---- the clip ------------------------------------------------------------------------------------

Policy = Callable[[Data, Var, Var, F64], Var]


def _policy(made: Policy, needs: Any = clipped) -> Plant:
    return on("policy", made, needs)


def _clip(tamed: Callable[[Data, Var], Var]) -> Policy:
    """min(ρ·A, tamed(ρ)·A)"""
    return lambda d, t, ratio, a: -tape.least(ratio * a, tamed(d, ratio) * a)


def _bounded(edges: Callable[[float, float], tuple[float, float]]) -> Policy:
    """With other bounds, as functions of the right ones."""
    return _clip(lambda d, ratio: tape.clamp(ratio, *edges(*bounds(d))))


def _both_sides(factor: float) -> Callable[[Data], bool]:
    """Whether two tokens on either side tell ``factor`` times the ε from the right one."""

    def needs(data: Data) -> bool:
        low, high = sorted((1.0, factor))
        ratio, a = np.exp(data.new - data.old), data.advantages[data.index]
        under = (1.0 - ratio[a < 0]) / data.hyper["epsilon_low"]
        over = (ratio[a > 0] - 1.0) / data.hyper["epsilon_high"]
        counts = [int(((off > low) & (off < high)).sum()) for off in (under, over)]
        return token_level(data) and min(counts) >= 2

    return needs


def _two_epsilons(data: Data) -> bool:
    return clipped(data) and data.hyper["epsilon_low"] != data.hyper["epsilon_high"]


def _log_space(data: Data, new: Var, ratio: Var, a: F64) -> Var:
    low, high = bounds(data)
    change = tape.clamp(log_ratio(data, new), low - 1.0, high - 1.0)
    return -tape.least(ratio * a, np.exp(change) * a)


def _greatest(data: Data, new: Var, ratio: Var, a: F64) -> Var:
    return -tape.most(ratio * a, tape.clamp(ratio, *bounds(data)) * a)


def _of(value: Callable[[Data, Var, Var], Var]) -> Policy:
    """The right clip of another quantity than ρ."""

    def policy(data: Data, new: Var, ratio: Var, a: F64) -> Var:
        x = value(data, new, ratio)
        return -tape.least(x * a, tape.clamp(x, *bounds(data)) * a)

    return policy


def _left_out(data: Data, new: Var, ratio: Var, a: F64) -> Var:
    free, bounded = ratio * a, tape.clamp(ratio, *bounds(data)) * a
    return -(free * (free.value <= bounded.value))


def _capped(data: Data, new: Var, ratio: Var, a: F64) -> Var:
    free = ratio * (a >= 0) + tape.clamp(ratio, -np.inf, 1.4) * (a < 0)
    return -tape.least(free * a, tape.clamp(ratio, *bounds(data)) * a)


def _cut(data: Data, new: Var, ratio: Var, a: F64) -> Var:
    epsilon = data.hyper["epsilon_high"]
    inside = ratio.value <= epsilon
    moving = new * inside + tape.stop(new) * ~inside
    return -(tape.stop(tape.clamp(ratio, 0.0, epsilon)) * a * moving)


def _weight(made: Callable[[Data, Var], Var]) -> Plant:
    """CISPO with another weight."""
    return _policy(lambda d, t, ratio, a: -(made(d, ratio) * a * t), cispo)


CLIPS = {
    "ratio detached": _policy(_of(lambda d, t, ratio: tape.stop(ratio))),
    "log-prob for the ratio": _policy(lambda d, t, ratio, a: -(t * a)),
    "1 + log ratio for the ratio": _policy(_of(lambda d, t, ratio: log_ratio(d, t) + 1.0)),
    "cispo's weight with its gradient": _weight(
        lambda d, ratio: tape.clamp(ratio, 0.0, d.hyper["epsilon_high"])
    ),
    "cispo's bound at 1 + ε": _weight(
        lambda d, ratio: tape.stop(tape.clamp(ratio, 0.0, 1.0 + d.hyper["epsilon_high"]))
    ),
    "cispo without its bound": _weight(lambda d, ratio: tape.stop(ratio)),
    "max for min": _policy(_greatest),
    "no min": _policy(lambda d, t, ratio, a: -(tape.clamp(ratio, *bounds(d)) * a)),
    "no clip": _policy(lambda d, t, ratio, a: -(ratio * a)),
    "no lower clip": _policy(_bounded(lambda low, high: (0.0, high))),
    "no upper clip": _policy(_bounded(lambda low, high: (low, 1e6))),
    "epsilon_low and epsilon_high swapped": _policy(
        _bounded(lambda low, high: (2.0 - high, 2.0 - low)), _two_epsilons
    ),
    "epsilon_low on both sides": _policy(
        _bounded(lambda low, high: (low, 2.0 - low)), _two_epsilons
    ),
    "half the epsilon": _policy(
        _bounded(lambda low, high: (1 - (1 - low) / 2, 1 + (high - 1) / 2)), _both_sides(0.5)
    ),
    "twice the epsilon": _policy(
        _bounded(lambda low, high: (1 - (1 - low) * 2, 1 + (high - 1) * 2)), _both_sides(2.0)
    ),
    "lower bound 1/(1 + ε)": _policy(_bounded(lambda low, high: (1.0 / high, high))),
    "clip in log space": _policy(_log_space),
    "clip straight-through": _policy(_clip(lambda d, ratio: tape.through(ratio, *bounds(d)))),
    "min before the advantage": _policy(
        lambda d, t, ratio, a: -(tape.least(ratio, tape.clamp(ratio, *bounds(d))) * a), token_level
    ),
    "clipped tokens left out": _policy(_left_out, token_level),
    "a cap of 1.4 where A < 0": _policy(_capped, token_level),
    "cispo without gradient at its cap": _policy(_cut, cispo),
    "the policy term twice as large": _policy(
        lambda d, t, ratio, a: -tape.least(ratio * a, tape.clamp(ratio, *bounds(d)) * a) * 2.0,
        lambda d: clipped(d) and with_kl(d),
    ),
}


# ---- the KL --------------------------------------------------------------------------------------


def _kl(term: Callable[[Data, Var], Var], needs: Callable[[Data], bool] = with_kl) -> Plant:
    """β·k with another estimate k, weighted as it should be."""

    def made(data: Data, new: Var, ratio: Var) -> Var:
        weighted = data.framework.get("use_bias_correction_kl")
        return data.hyper["beta"] * term(data, new) * (ratio if weighted else 1.0)

    return on("kl", made, needs)


def _k3(change: Var) -> Var:
    return np.exp(change) - change - 1.0


def _turned(data: Data, new: Var, ratio: Var) -> Var:
    weighted = data.framework.get("use_bias_correction_kl")
    return data.hyper["beta"] * k3(data, new) * (1.0 if weighted else ratio)


def _after_mean(data: Data, policy: Var, penalty: Var) -> Var:
    """β·(the mean KL over all tokens) added to the reduced policy term."""
    return reduced(data, policy, data.framework["loss_type"]) + reduced(data, penalty, "bnpo")


def _weighted(data: Data) -> bool:
    return with_kl(data) and moved(data) and bool(data.framework.get("use_bias_correction_kl"))


def _unweighted(data: Data) -> bool:
    return with_kl(data) and moved(data) and not data.framework.get("use_bias_correction_kl")


KLS = {
    "KL reversed": _kl(lambda d, t: _k3(t - d.ref)),
    "−β": _kl(lambda d, t: -k3(d, t)),
    "KL without gradient": _kl(lambda d, t: tape.stop(k3(d, t))),
    "KL missing": _kl(lambda d, t: t * 0.0),
    "β twice as large": _kl(lambda d, t: k3(d, t) * 2.0),
    "β of 0.025": _kl(lambda d, t: k3(d, t) * (0.025 / d.hyper["beta"])),
    "k1 for k3": _kl(lambda d, t: t - d.ref),
    "k2 for k3": _kl(lambda d, t: (t - d.ref) * (t - d.ref) * 0.5),
    "|log ratio| for k3": _kl(lambda d, t: np.abs(t - d.ref)),
    "KL to the old policy": _kl(lambda d, t: _k3(d.old - t)),
    "KL of the old policy": _kl(lambda d, t: _k3(d.ref - d.old) + 0.0 * t),
    "d² for k3": _kl(lambda d, t: (t - d.ref) * (t - d.ref)),
    "k3 bounded at 0.02": _kl(
        lambda d, t: tape.clamp(k3(d, t), -1.0, 0.02),
        lambda d: with_kl(d) and not d.framework.get("use_bias_correction_kl"),
    ),
    "KL without its weight": on("kl", _turned, _weighted),
    "KL with a weight": on("kl", _turned, _unweighted),
    "KL's weight without gradient": on(
        "kl", lambda d, t, ratio: kl(d, t, tape.stop(ratio)), _weighted
    ),
    "KL added after the mean": on("reduce", _after_mean, with_kl),
}
