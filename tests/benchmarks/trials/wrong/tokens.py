"""Tokens and responses that are lost, or counted twice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trials.simulate.policy import F64, Random
from trials.trl import tape
from trials.trl.data import Data
from trials.trl.loss import RIGHT
from trials.trl.tape import Var
from trials.wrong.mistake import Mistake, Outcome


def _rows(pick: Callable[[Data, Random], np.ndarray], factor: float) -> Callable[..., Outcome]:
    """Some tokens count ``factor`` times in the numerator; the denominator stays."""

    def after(data: Data, outcome: Outcome, random: Random) -> Outcome:
        loss, gradient = outcome
        weight = np.where(pick(data, random), factor, 1.0)
        return loss + _part(data, weight - 1.0), gradient * weight

    return after


def _part(data: Data, weight: F64) -> float:
    """What the loss gains when the tokens' shares of it are taken ``weight`` times more."""
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


_LOST = r"dropped|missing|gradient 0|no gradient|do(es)? not count|left out|lost|masked"
_MORE = r"doubled|twice|double"

TOKENS = (
    Mistake(
        "last tokens dropped",
        rf"last token.*({_LOST})|({_LOST}).*last",
        after=_rows(_edge(True), 0.0),
    ),
    Mistake(
        "first tokens dropped",
        rf"first token.*({_LOST})|({_LOST}).*first",
        after=_rows(_edge(False), 0.0),
    ),
    Mistake(
        "last tokens doubled",
        rf"last token.*({_MORE})|({_MORE}).*last",
        after=_rows(_edge(True), 2.0),
    ),
    Mistake(
        "one token dropped",
        rf"(1 of|one|a|\d) .*token.*({_LOST})|({_LOST}).*token",
        after=_rows(_one_token, 0.0),
    ),
    Mistake(
        "one token doubled", rf"token.*({_MORE})|({_MORE}).*token", after=_rows(_one_token, 2.0)
    ),
    Mistake(
        "a response dropped",
        rf"response.*({_LOST})|({_LOST}).*response",
        after=_rows(_one_row, 0.0),
    ),
    Mistake(
        "a response doubled",
        rf"response.*({_MORE})|({_MORE}).*response",
        after=_rows(_one_row, 2.0),
    ),
)
