"""What the responses of a step say together: rewards, groups, lengths."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property

from grpo_cli.commands.trend.sums import Rows

_ONCE = ((0.0, 1.0), (-1.0, 1.0))
"""Rewards that say whether a response is right and nothing else: wrong, right."""


class Responses:
    """The rows of a step, taken together."""

    def __init__(self, rows: Rows) -> None:
        self.rewards, self.lengths = rows.rewards.tolist(), rows.lengths.tolist()
        self._gradients, self._groups = rows.gradients, rows.groups
        self._labels = rows.labels

    # ---- rewards ------------------------------------------------------------------------------

    @cached_property
    def scored(self) -> bool:
        """Whether every response has a reward."""
        return bool(self.rewards) and not any(map(math.isnan, self.rewards))

    @cached_property
    def groups(self) -> list[list[float]]:
        """The rewards of each group.

        A group is what one record calls so. Where the pieces are uneven or single, because a
        trainer shuffled the rows of a step, those with the same name are one group.
        """
        pieces = self._pieces(self._groups)
        if len({len(one) for one in pieces}) == 1 and len(pieces[0]) > 1:
            return pieces
        if any(label is None for label in self._labels):
            return pieces
        numbers = {label: at for at, label in enumerate(dict.fromkeys(self._labels))}
        return self._pieces(numbers[self._labels[number]] for number in self._groups)

    def _pieces(self, numbers: Iterable[int]) -> list[list[float]]:
        """The rewards under each number."""
        found: dict[int, list[float]] = {}
        for number, reward in zip(numbers, self.rewards, strict=True):
            found.setdefault(number, []).append(reward)
        return [*found.values()]

    @property
    def reward_mean(self) -> float | None:
        """Over responses."""
        return _mean(self.rewards) if self.scored else None

    @property
    def reward_std(self) -> float | None:
        """Over responses, with n − 1."""
        return _std(self.rewards) if self.scored else None

    @property
    def reward_group_std(self) -> float | None:
        """The mean of the groups' standard deviations (n − 1), of groups of two and more."""
        if not self.scored:
            return None
        return _mean([_std(one) or 0.0 for one in self._several])

    @cached_property
    def _several(self) -> list[list[float]]:
        """The rewards of the groups of two and more."""
        return [one for one in self.groups if len(one) > 1]

    def share_of_groups(self, *rewards: float) -> float | None:
        """How many groups have one reward throughout: this one, or any where none is given."""
        if not self.scored or not self._several:
            return None
        alike = self._alike
        count = sum(first in rewards for first in alike) if rewards else len(alike)
        return count / len(self._several)

    @cached_property
    def _alike(self) -> list[float]:
        """The reward of each group that has but one."""
        return [one[0] for one in self._several if one.count(one[0]) == len(one)]

    @cached_property
    def _right(self) -> float | None:
        """The reward of a right answer, where rewards say just that."""
        values = set(self.rewards) if self.scored else set()
        return next((right for wrong, right in _ONCE if values and values <= {wrong, right}), None)

    @property
    def all_wrong(self) -> float | None:
        """The share of groups without a right answer."""
        return None if self._right is None else self.share_of_groups(0.0, -1.0)

    @property
    def all_right(self) -> float | None:
        """The share of groups of right answers only."""
        return None if self._right is None else self.share_of_groups(1.0)

    @property
    def pass_at_1(self) -> float | None:
        """The mean over groups of the share that is right."""
        if self._right is None:
            return None
        return _mean([one.count(self._right) / len(one) for one in self.groups])

    @property
    def pass_at_k(self) -> float | None:
        """The share of groups with a right answer, k being their size."""
        if self._right is None or not self._several:
            return None
        return _mean([float(self._right in one) for one in self.groups])

    # ---- lengths ------------------------------------------------------------------------------

    @cached_property
    def measured(self) -> bool:
        """Whether the length of every response is known."""
        return bool(self.lengths) and min(self.lengths) >= 0

    @property
    def length_mean(self) -> float | None:
        """Tokens of a response."""
        return sum(self.lengths) / len(self.lengths) if self.measured else None

    def length_quantile(self, share: float) -> float | None:
        """The length that ``share`` of the responses do not exceed."""
        if not self.measured:
            return None
        return sorted(self.lengths)[max(math.ceil(share * len(self.lengths)), 1) - 1]

    @property
    def at_longest(self) -> float | None:
        """The share of responses as long as the longest: those that were cut off, where any."""
        if not self.measured:
            return None
        return self.lengths.count(max(self.lengths)) / len(self.lengths)

    @property
    def longest_quarter(self) -> float | None:
        """The share of Σ |gradient| in the longest quarter of the responses.

        Where the border goes through responses of one length, these count in proportion.
        """
        whole = math.fsum(self._gradients)
        if not whole > 0.0:
            return None
        by_length: dict[int, list[float]] = {}
        for length, gradient in zip(self.lengths, self._gradients, strict=True):
            by_length.setdefault(length, []).append(gradient)
        room, found = len(self.lengths) / 4, []
        for length in sorted(by_length, reverse=True):
            alike = by_length[length]
            part = min(room / len(alike), 1.0)
            found.append(part * math.fsum(alike))
            room -= part * len(alike)
            if room <= 0:
                break
        return math.fsum(found) / whole


def _mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if len(values) else None


def _std(values: list[float]) -> float | None:
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    offsets = [one - mean for one in values]
    return math.sqrt(math.fsum([one * one for one in offsets]) / (len(values) - 1))
