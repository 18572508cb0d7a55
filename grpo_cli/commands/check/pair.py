"""Two columns of log-probs of the same tokens, with the statistics that rules share."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.commands.check.record_view import Tokens
from grpo_cli.commands.check.scale import LEAST_TOKENS, SURE, Scale, are_clear

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
    def to_engine(self) -> bool:
        """Whether the second is of the engine from which the tokens were sampled."""
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
        found: I64 = self.samples.sum(tokens.astype(np.int64))
        return found

    @cached_property
    def equal(self) -> NDArray[np.bool_]:
        """[S] whether the columns are equal to the last bit."""
        return self.count(self.log_ratio != 0.0) == 0

    @cached_property
    def weight(self) -> F64:
        """[N] exp(log ratio), e^50 at most."""
        return np.exp(np.clip(self.log_ratio, -_OVERFLOW, _OVERFLOW))

    @cached_property
    def freedom(self) -> F64:
        """[N] 1 − p, p being the greater probability: how far a log-prob could move."""
        found: F64 = -np.expm1(np.minimum(np.maximum(self.first, self.second), 0.0))
        return found

    def moments(self, values: F64, among: NDArray[Any] | None = None) -> tuple[F64, F64, F64]:
        """Returns [S] number, mean and standard deviation of all values, or of those among."""
        part = values if among is None else np.where(among, values, 0.0)
        each = self.samples.lengths if among is None else self.count(among)
        number = np.maximum(each, 1).astype(np.float64)
        mean = self.samples.sum(part) / number
        away = values - self.samples.spread(mean)
        part = away if among is None else np.where(among, away, 0.0)
        return each.astype(np.float64), mean, np.sqrt(self.samples.sum(part * part) / number)

    def count_sides(self, among: NDArray[Any]) -> tuple[I64, I64]:
        """Returns [S] tokens at which the first column is above the second, and below it."""
        return self.count(among & (self.log_ratio > 0.0)), self.count(
            among & (self.log_ratio < 0.0)
        )

    @cached_property
    def scales(self) -> dict[int, Scale]:
        """Sample → its scale, where the log ratio goes with the log-probs, or has one sign.

        Of all tokens, or of sure ones. By chance it is measured once in 100,000 samples.
        """
        clear, middle = are_clear(self.first, self.second), self.first + self.second
        sides = [self.count_sides(among) for among in (clear, clear & (middle > SURE))]
        found = np.zeros(self.samples.count, dtype=np.bool_)
        for ups, downs in sides:
            away = np.abs(ups - downs) / np.sqrt(np.maximum(ups + downs, 1))
            found |= (ups + downs >= LEAST_TOKENS) & (away > _COIN_SIGMAS)
        n, centre, spread = self.moments(middle, clear)
        _, _, change = self.moments(self.log_ratio, clear)
        _, together, _ = self.moments(
            (middle - self.samples.spread(centre)) * self.log_ratio, clear
        )
        found |= (n >= LEAST_TOKENS) & (
            np.abs(together) * np.sqrt(n) > _COIN_SIGMAS * spread * change
        )
        parts = {sample: self.tokens(sample) for sample in np.flatnonzero(found).tolist()}
        return {at: Scale.of(self.first[part], self.second[part]) for at, part in parts.items()}

    def __str__(self) -> str:
        return f"{self.keys[0]} − {self.keys[1]}"
