"""Denominators, accumulation, and tokens that are lost or counted twice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trials.simulate.policy import F64, Random
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


def _rows(pick: Callable[[Data, Random], np.ndarray], factor: float) -> Callable[..., Outcome]:
    """Some tokens count ``factor`` times in the numerator; the denominator stays."""

    def after(data: Data, outcome: Outcome, random: Random) -> Outcome:
        loss, gradient = outcome
        weight = np.where(pick(data, random), factor, 1.0)
        return loss + _part(data, weight - 1.0), gradient * weight

    return after


def _part(data: Data, weight: F64) -> float:
    """What the loss gains when the tokens' shares of it are taken ``weight`` times more."""
    from trials.trl.loss import RIGHT

    new = Var(data.new)
    ratio = tape.exp(RIGHT.log_ratio(data, new))
    policy = RIGHT.policy(data, new, ratio, RIGHT.advantage(data)) * weight
    kl = RIGHT.kl(data, new, ratio) * weight
    return float(RIGHT.finish(data, RIGHT.reduce(data, policy, kl)).value)


def _edge(last: bool) -> Callable[[Data, Random], np.ndarray]:
    def pick(data: Data, random: Random) -> np.ndarray:
        step = np.diff(data.index, append=-1) if last else np.diff(data.index, prepend=-1)
        return step != 0

    return pick


def _one_token(data: Data, random: Random) -> np.ndarray:
    loud = np.argsort(-np.abs(data.advantages[data.index]))[: max(1, len(data.new) // 3)]
    chosen = random.choice(loud)
    return np.arange(len(data.new)) == chosen


def _one_row(data: Data, random: Random) -> np.ndarray:
    counts = np.bincount(data.index, minlength=data.count) > 0
    row = np.argmax(np.abs(data.advantages) * counts)
    return data.index == row


def _scaled(loss: float, gradient: float) -> Callable[..., Outcome]:
    return lambda data, outcome, random: (outcome[0] * loss, outcome[1] * gradient)


_LOST = r"dropped|missing|gradient 0|no gradient|do(es)? not count|left out|lost|masked"
_MORE = r"doubled|twice|double"
_FACTOR = r"factor|times|divided by|÷|×"
_SUM = r"\bsum\b"

REDUCTIONS = (
    _denominator(
        "mean over responses for another reduction",
        r"response-mean|trl/grpo|mean (over|of) (the )?responses|aggregate (trl/)?grpo|per.response|seq-mean-token-mean",
        _as("grpo"),
        "grpo",
    ),
    _denominator(
        "mean over the micro-batch's tokens",
        r"token-mean|bnpo|mean over (all |the )?tokens|number of tokens",
        _as("bnpo"),
        "bnpo",
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
    Mistake("last tokens dropped", rf"last token.*({_LOST})|({_LOST}).*last", after=_rows(_edge(True), 0.0)),
    Mistake("first tokens dropped", rf"first token.*({_LOST})|({_LOST}).*first", after=_rows(_edge(False), 0.0)),
    Mistake("last tokens doubled", rf"last token.*({_MORE})|({_MORE}).*last", after=_rows(_edge(True), 2.0)),
    Mistake("one token dropped", rf"(1 of|one|a|\d) .*token.*({_LOST})|({_LOST}).*token", after=_rows(_one_token, 0.0)),
    Mistake("one token doubled", rf"token.*({_MORE})|({_MORE}).*token", after=_rows(_one_token, 2.0)),
    Mistake("a response dropped", rf"response.*({_LOST})|({_LOST}).*response", after=_rows(_one_row, 0.0)),
    Mistake("a response doubled", rf"response.*({_MORE})|({_MORE}).*response", after=_rows(_one_row, 2.0)),
)
