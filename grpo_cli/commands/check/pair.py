"""Two columns of log-probs of the same tokens: their statistics, and how much surer one is."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.commands.check.tokens import Place, Tokens, count_marked

SURE = -0.25
"""The sum of two log-probs from which on a token is sure: probabilities of about 0.88."""
COARSE = -1e-5
"""Log-probs closer to 0 have lost the digits of 1 − p in float32."""
LEAST_TOKENS = 24
_UNSURE = -1e-3
_VARIED = 1.5
_LINE_SIGMAS = 5.0
_SLOPE_SIGMAS = 4.0
_SIDE_SIGMAS = 3.0
_SIDE = 0.3
_QUARTILES = (0.25, 0.5, 0.75)
_NORMAL = 1.349
"""The distance of the quartiles of a normal distribution, in standard deviations."""


class Middle(NamedTuple):
    """The median of numbers, and their spread about it as of a normal distribution."""

    number: int
    median: float
    spread: float

    @classmethod
    def of(cls, values: F64) -> Middle:
        """Returns both by quartiles; nothing of fewer numbers than ``LEAST_TOKENS``."""
        if len(values) < LEAST_TOKENS:
            return cls(0, 0.0, 0.0)
        ordered = np.sort(values)  # several places of what is not sorted take four times as long
        low, middle, high = np.quantile(ordered, _QUARTILES).tolist()
        return cls(len(values), middle, (high - low) / _NORMAL)

    def is_alike(self, most: float) -> bool:
        """Returns whether the spread is at most that share of the median."""
        return self.median != 0.0 and self.spread <= most * abs(self.median)


class Scale:
    """How much surer the first column is than the second.

    A temperature T on the second divides its logits: log-odds x become x/T − (1 − 1/T)·H there,
    H ≥ 0 being an entropy of the other words (Rényi's of the order 1/T). So the difference is
    within about one nat times the share 1/T − 1 of a line in x; and at sure tokens, where H is
    small against x, the share is one number. Training moves sure tokens little, and each by
    another share; a base, or any other factor of log-probs, has one log b/a.

    Args:
        first, second: [N] the columns at the tokens of a sample.
        clear: [N] which tokens differ, and have enough digits in both columns.
    """

    def __init__(self, first: F64, second: F64, clear: NDArray[np.bool_]) -> None:
        self._columns = first, second
        self._kept = clear

    @cached_property
    def _clear(self) -> tuple[F64, F64]:
        return self._columns[0][self._kept], self._columns[1][self._kept]

    @cached_property
    def line(self) -> Middle:
        """The slope of the difference of the log-odds on their mean, and what is left."""
        return _fit_line(*_log_odds(*self._clear))

    @cached_property
    def _sure(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self._kept & (np.add(*self._columns) > SURE)
        return found

    @cached_property
    def odds(self) -> Middle:
        """The difference of the log-odds over their mean, of sure tokens."""
        middle, distance = _log_odds(*(column[self._sure] for column in self._columns))
        return Middle.of(distance / middle)

    def has_even_odds(self, most: float) -> bool:
        """Returns whether the share of the log-odds spreads by at most that part of its median."""
        return _is_one_sided(*self._columns, self._sure) and self.odds.is_alike(most)

    @cached_property
    def factor(self) -> Middle:
        """The log(second/first) of the log-probs."""
        return Middle.of(np.log(-self._clear[1]) - self._sizes)

    @cached_property
    def slope(self) -> tuple[float, float]:
        """The sum of the second column over the first's, and how far noise may move it, at most.

        Four standard errors, and half the variance of what is left, as of a KL.
        """
        first, second = self._clear
        if len(first) < LEAST_TOKENS:
            return 1.0, np.inf
        slope = float(second.sum() / first.sum())
        left, size = second - slope * first, -float(first.sum())
        power = float(left @ left)
        return slope, (_SLOPE_SIGMAS * np.sqrt(power) + power / 2.0) / size

    @cached_property
    def _sizes(self) -> F64:
        return np.log(-self._clear[0])

    @cached_property
    def vanished(self) -> float:
        """The share of tokens that are certain (0.0) in one column and not in the other."""
        first, second = self._columns
        return float(np.mean((np.maximum(first, second) == 0.0) & (first + second < _UNSURE)))

    @cached_property
    def offset(self) -> Middle:
        """The difference of the log-probs."""
        return Middle.of(np.subtract(*self._clear))

    def is_factor(self, most: float) -> bool:
        """Returns whether log-probs of all sizes differ by one factor, and not by an offset.

        An offset would spread the factor by as much as log |first| spreads.
        """
        if not (_is_one_sided(*self._columns, self._kept) and self.factor.is_alike(most * _VARIED)):
            return False
        return self.factor.is_alike(most * Middle.of(self._sizes).spread)


def _is_one_sided(first: F64, second: F64, among: NDArray[np.bool_]) -> bool:
    """Returns whether one column is above the other at 7 of 10 of the tokens, or below it.

    It is at three quarters where the share by which they differ spreads by less than 0.7 of its
    median: both quartiles have its sign. To count is a tenth of the work of measuring that.
    """
    every, above = np.count_nonzero(among), np.count_nonzero(among & (first > second))
    return not _SIDE * every < above < (1.0 - _SIDE) * every


def _log_odds(first: F64, second: F64) -> tuple[F64, F64]:
    """Returns the mean and the difference of the log-odds of two columns."""
    x, y = (column - np.log(-np.expm1(column)) for column in (first, second))
    return (x + y) / 2.0, x - y


_MOST, _LEAST_SLOPE = 0.75, 0.15
"""The share of tokens, those that differ least, whose slope is that part of the slope at least.

At temperatures of 0.7 to 1.3 it is 0.2 and more, 0.7 as a rule; where a tenth of the tokens, such
as the ends of text, has another log-prob and the others have not, 0.02 and less.
"""


def _fit_line(x: F64, y: F64) -> Middle:
    """Returns the slope of y on x and the spread of what is left.

    Nothing if the slope may be 0, or if a minority of the tokens makes it.
    """
    slope, power = _fit_slope(x, y)
    left = Middle.of(y - slope * x)
    if not left.number or abs(slope) * np.sqrt(power) <= _LINE_SIGMAS * left.spread:
        return Middle(0, 0.0, 0.0)
    most = np.abs(y) <= np.quantile(np.abs(y), _MOST)
    if abs(_fit_slope(x[most], y[most])[0]) < _LEAST_SLOPE * abs(slope):
        return Middle(0, 0.0, 0.0)
    return Middle(left.number, slope, left.spread)


def _fit_slope(x: F64, y: F64) -> tuple[float, float]:
    """Returns the slope of y on x, and the sum of squares of x about its mean."""
    x = x - x.mean() if len(x) else x
    power = float(x @ x)
    return float(x @ y) / power if power > 0.0 else 0.0, power


_OVERFLOW = 50.0
_COIN_SIGMAS = 4.5


class Pair:
    """A pair of columns over samples: S samples of n tokens each, N in all.

    Args:
        view: the records' tokens.
        names: the columns; the log ratio is the first less the second.
    """

    def __init__(self, view: Tokens, names: tuple[str, str]) -> None:
        self.view = view
        self.names = names
        self.first, self.second = (view.log_probs[name] for name in names)

    @cached_property
    def keys(self) -> tuple[str, str]:
        """The user's names of the columns."""
        return self.view.key(self.names[0]), self.view.key(self.names[1])

    @property
    def to_reference(self) -> bool:
        """Whether the second is the reference, from which a policy moves far in long training."""
        return self.names[1] == "log_probs_ref"

    @property
    def to_old(self) -> bool:
        """Whether the second is the old policy, from which one update leads to the first."""
        return self.names[1] == "log_probs_old"

    @property
    def to_engine(self) -> bool:
        """Whether the second is the engine's that sampled, which may have older weights."""
        return self.names[1] == "log_probs_rollout"

    @cached_property
    def samples(self) -> Segments:
        """The tokens of each sample."""
        return Segments(np.add.reduceat(self.view.tokens, self.view.sample_starts))

    @cached_property
    def rows(self) -> Segments:
        """The responses of each sample."""
        return Segments(np.add.reduceat(self.view.counts, self.view.sample_starts))

    def record(self, sample: int) -> int:
        """Returns the first record of a sample."""
        return int(self.view.sample_starts[sample])

    def place(self, sample: int) -> Place:
        """Returns the place of the first record of a sample."""
        return self.view.places[self.record(sample)]

    def tokens(self, sample: int) -> slice:
        """Returns the tokens of a sample."""
        start = int(self.samples.starts[sample])
        return slice(start, start + int(self.samples.lengths[sample]))

    @cached_property
    def log_ratio(self) -> F64:
        """[N] the first less the second."""
        return self.first - self.second

    @cached_property
    def size(self) -> F64:
        """[N] |log ratio|."""
        return np.abs(self.log_ratio)

    def count(self, tokens: NDArray[np.bool_]) -> I64:
        """Returns [S] how many of the tokens are marked."""
        return count_marked(self.samples, tokens)

    @cached_property
    def equal(self) -> NDArray[np.bool_]:
        """[S] whether the columns are equal to the last bit."""
        return self.count(self.first - self.second != 0.0) == 0  # kept of few pairs

    @cached_property
    def distinct(self) -> Pair:
        """The pair without the tokens of copied responses, which are no independent evidence."""
        view = self.view.distinct
        return self if view is self.view else Pair(view, self.names)

    @property
    def weight(self) -> F64:
        """[N] exp(log ratio), e^50 at most."""
        found: F64 = np.minimum(self.log_ratio, _OVERFLOW)
        return np.exp(found, out=found)

    def means(self, values: F64, among: NDArray[Any] | None = None) -> tuple[F64, F64]:
        """Returns [S] number and mean of all values, or of those among."""
        part = values if among is None else values * among
        each = self.samples.lengths if among is None else self.count(among)
        number = each.astype(np.float64)
        return number, self.samples.sum(part) / np.maximum(number, 1.0)

    def moments(self, values: F64, among: NDArray[Any] | None = None) -> tuple[F64, F64, F64]:
        """Returns [S] number, mean and standard deviation of all values, or of those among."""
        number, mean = self.means(values, among)
        away = self.samples.spread(mean)  # and on in its place: such a column may be some MB
        np.subtract(values, away, out=away)
        if among is not None:
            away *= among
        away *= away
        return number, mean, np.sqrt(self.samples.sum(away) / np.maximum(number, 1.0))

    @cached_property
    def leaning(self) -> tuple[F64, F64, F64]:
        """[S] number, Σ (m − m̄)·d and Σ (m − m̄)² of tokens that differ clearly.

        d is the log ratio, m the sum of both log-probs: where one column has a temperature, d/m
        has one slope in all samples.
        """
        away = self._middle
        n, centre = self.means(away, self._clear)
        away -= self.samples.spread(centre)
        away *= self._clear
        together = self.samples.sum(away * self.log_ratio)
        away *= away
        return n, together, self.samples.sum(away)

    @cached_property
    def _clear(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = np.maximum(self.first, self.second) < COARSE
        found &= self.first != self.second
        return found

    @property
    def _middle(self) -> F64:
        return self.first + self.second

    @cached_property
    def scales(self) -> dict[int, Scale]:
        """Sample → its scale, where the log ratio goes with the log-probs, or has one sign.

        Of all tokens, or of sure ones. By chance it is measured once in 100,000 samples.
        """
        found, above = np.zeros(self.samples.count, dtype=np.bool_), self.log_ratio > 0.0
        for among in (self._clear, self._clear & (self._middle > SURE)):
            every, ups = self.count(among), self.count(among & above)
            away = np.abs(2 * ups - every) / np.sqrt(np.maximum(every, 1))
            found |= (every >= LEAST_TOKENS) & (away > _COIN_SIGMAS)
        if not found.all():
            n, together, power = self.leaning
            _, _, change = self.moments(self.log_ratio, self._clear)
            found |= (n >= LEAST_TOKENS) & (
                np.abs(together) > _COIN_SIGMAS * np.sqrt(power) * change
            )
        parts = {sample: self.tokens(sample) for sample in np.flatnonzero(found).tolist()}
        return {
            at: Scale(self.first[part], self.second[part], self._clear[part])
            for at, part in parts.items()
        }

    def find_odd(self, sample: int) -> tuple[int | None, list[str]]:
        """Returns which of the two columns the others of a sample contradict, and these by name.

        Those that are nearer to one of the two, by three standard errors, and no copies of it. None
        if they are nearer to different ones, or if none is.
        """
        part = self.tokens(sample)
        away, sides = (self.second - self.first)[part], dict[str, int]()
        power = float(away @ away)
        for name in self.view.log_probs.keys() - {*self.names}:
            change = (self.view.log_probs[name] - self.first)[part]
            at = float(change @ away) / power  # 0 is the first, 1 the second
            left = (change - at * away) * away
            error = _SIDE_SIGMAS * float(np.sqrt(left @ left)) / power
            side = int(at > 0.5)
            if abs(at - side) + error < 0.5 and np.any(change != side * away):
                sides[self.view.key(name)] = side
        one_sided = len({*sides.values()}) == 1
        return (1 - next(iter(sides.values())) if one_sided else None), sorted(sides)

    def compare_with_others(self, sample: int) -> tuple[int | None, dict[str, Any]]:
        """Returns which column of the pair all others contradict, and words that say so."""
        odd, others = self.find_odd(sample)
        if odd is None:
            return None, {"agree": ""}
        listed, verb = " and ".join(others), "agrees" if len(others) == 1 else "agree"
        return odd, {"agree": f". {listed} {verb} with {self.keys[1 - odd]}"}

    def __str__(self) -> str:
        return f"{self.keys[0]} − {self.keys[1]}"
