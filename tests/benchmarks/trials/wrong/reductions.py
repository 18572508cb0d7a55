"""Denominators and accumulation that are wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trials.trl import tape
from trials.trl.data import Data
from trials.trl.loss import accumulated, summed
from trials.trl.tape import Var
from trials.wrong.mistake import Mistake, Outcome


def _type(data: Data) -> str:
    return str(data.framework["loss_type"])


def _as(kind: str) -> Callable[[Data, Var, Var], Var]:
    return lambda data, policy, kl: summed(data, policy + kl, kind)


def _over(size: Callable[[Data], float]) -> Callable[[Data, Var, Var], Var]:
    return lambda data, policy, kl: tape.total(policy + kl) / size(data)


def _denominator(
    name: str, right: str, made: Callable[[Data, Var, Var], Var], *unless: str
) -> Mistake:
    return Mistake(name, right, {"reduce": made}, needs=lambda data: _type(data) not in unless)


def _widest(data: Data) -> float:
    return float(data.written.max())


def _truncated(data: Data, policy: Var, kl: Var) -> Var:
    """Masked tokens left the numerator, but not the denominator (trl#6369)."""
    loss = policy + kl
    written = np.maximum(data.written.astype(float), 1.0)
    if _type(data) == "grpo":
        return tape.total(loss / written[data.index]) / data.count
    return tape.total(loss) / float(data.written.sum())


def _masked(data: Data) -> bool:
    return not data.kept.all() and _type(data) in ("grpo", "bnpo")


def _halves(data: Data, policy: Var, kl: Var) -> Var:
    """Each half of the responses divides by its own tokens (SkyRL#1296)."""
    number = np.minimum(np.arange(data.count) * 2 // data.count, 1)
    tokens = np.bincount(number[data.index], minlength=2).astype(float)
    return tape.total((policy + kl) / np.maximum(tokens, 1.0)[number[data.index]]) / 2.0


def _all_but_one(data: Data, policy: Var, kl: Var) -> Var:
    return reduce_right(data, policy, kl) * (data.count / (data.count - 1))


def reduce_right(data: Data, policy: Var, kl: Var) -> Var:
    return summed(data, policy + kl, _type(data))


def _times(factor: Callable[[Data], float]) -> Callable[[Data, Var], Var]:
    return lambda data, loss: loss * (factor(data) / accumulated(data))


def _steps(data: Data) -> float:
    return float(data.hyper.get("gradient_accumulation_steps", 1))


def _accumulates(data: Data) -> bool:
    return _steps(data) > 1 and accumulated(data) > 1


def _scaled(loss: float, gradient: float) -> Callable[..., Outcome]:
    return lambda data, outcome, random: (outcome[0] * loss, outcome[1] * gradient)


_FACTOR = r"factor|times|divided by|÷|×"
_SUM = r"\bsum\b"

REDUCTIONS = (
    _denominator(
        "mean over responses for another reduction",
        r"response-mean|trl/grpo|mean (over|of) (the )?responses|aggregate (trl/)?grpo|"
        r"per.response|seq-mean-token-mean",
        _as("grpo"),
        "grpo",
    ),
    _denominator(
        "mean over the micro-batch's tokens",
        r"token-mean|bnpo|mean over (all |the )?tokens|number of tokens",
        _as("bnpo"),
        *("bnpo", "dapo", "cispo"),
    ),
    _denominator("sum over tokens", rf"{_SUM}|{_FACTOR}|denominator", _over(lambda d: 1.0)),
    _denominator(
        "sum over tokens, mean over responses",
        rf"token-sum|{_SUM}|number of responses|denominator",
        _over(lambda d: float(d.count)),
    ),
    _denominator(
        "constant length for the denominator",
        r"dr_grpo|token-sum-norm|max_completion_length|constant length|denominator",
        _as("dr_grpo"),
        "dr_grpo",
    ),
    Mistake(
        "mean over padded positions",
        r"padd|longest|width|denominator|mask",
        {"reduce": _over(lambda d: d.count * _widest(d))},
        needs=lambda d: _type(d) != "dr_grpo" and _widest(d) < d.hyper["max_completion_length"],
    ),
    _denominator(
        "the longest response for the constant length",
        r"longest|padd|width|length|factor|times",
        _over(lambda d: d.count * _widest(d)),
        *("grpo", "bnpo", "dapo", "cispo"),
    ),
    _denominator(
        "local count of tokens for the generation batch's",
        r"num_items|local|token-mean|bnpo|micro.?batch|factor|times",
        _as("bnpo"),
        *("grpo", "bnpo", "dr_grpo"),
    ),
    Mistake(
        "masked tokens in the denominator",
        r"mask|written|truncat",
        {"reduce": _truncated},
        needs=_masked,
    ),
    Mistake(
        "the mean of two micro-batches' token means",
        r"micro-?batches of|prompt-mean",
        {"reduce": _halves},
        row="mean-of-means",
        needs=lambda d: d.count >= 4,
    ),
    _denominator("B − 1 for B", rf"B ?− ?1|B ?- ?1|one response|{_FACTOR}", _all_but_one),
    Mistake(
        "not divided by the accumulation steps",
        r"accumulation|factor of (2|4)\b|steps_per_generation",
        {"finish": lambda data, loss: loss * 1.0},
        needs=_accumulates,
    ),
    Mistake(
        "divided by the accumulation steps twice",
        r"accumulation|factor of|steps_per_generation",
        {"finish": _times(lambda d: 1.0 / _steps(d))},
        needs=lambda d: _steps(d) > 1,
    ),
    Mistake("a plain factor of 1.7", rf"{_FACTOR}.*1\.7|1\.7", {"finish": _times(lambda d: 1.7)}),
    Mistake("a plain factor of 0.3", rf"{_FACTOR}.*0\.3|3\.33", {"finish": _times(lambda d: 0.3)}),
    Mistake(
        "the objective for the loss",
        r"wrong sign|negative|sign flip|objective",
        {"finish": _times(lambda d: -1.0)},
    ),
    Mistake(
        "the loss right, its gradient four times as large",
        r"gradient.*(factor|times|×|4)|(factor|times).*4|only the gradient",
        after=_scaled(1.0, 4.0),
    ),
    Mistake(
        "the gradient right, the loss four times as large",
        r"(factor|times|×).*4|only the loss|logged",
        after=_scaled(4.0, 1.0),
    ),
)
