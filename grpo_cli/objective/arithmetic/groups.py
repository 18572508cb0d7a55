"""The responses to one prompt, wherever they stand in the batch; running sums within responses."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.objective.arithmetic.exact_sums import row_offsets, row_sums


class Groups:
    """R responses in groups.

    Args:
        index: [R] the group of each response, 0-based.
        count: how many groups there are.
        known: sums and offsets that were asked for before; None: they are computed each time.
    """

    def __init__(
        self, index: I64, count: int, known: dict[tuple[str, bytes], F64] | None = None
    ) -> None:
        self.index = index
        self.count = count
        self._known = known

    @cached_property
    def sizes(self) -> I64:
        """[count] responses of each group."""
        return np.bincount(self.index, minlength=self.count)

    @cached_property
    def firsts(self) -> F64:
        """[R] 1 for the first response of each group, else 0: they add up to the groups."""
        marks = np.zeros(len(self.index))
        marks[np.unique(self.index, return_index=True)[1]] = 1.0
        return marks

    @cached_property
    def lasts(self) -> I64:
        """[count] the last response of each group; no group is empty."""
        found = np.zeros(self.count, dtype=np.int64)
        found[self.index] = np.arange(len(self.index))
        return found

    @cached_property
    def _by_size(self) -> list[tuple[I64, I64]]:
        """For each size: which groups have it, and [n, size] where their responses stand."""
        order = np.argsort(self.index, kind="stable")
        starts = np.cumsum(self.sizes) - self.sizes
        found = []
        for size in (np.flatnonzero(np.bincount(self.sizes)[1:]) + 1).tolist():
            groups = np.flatnonzero(self.sizes == size)
            found.append((groups, order[starts[groups, None] + np.arange(size)]))
        return found

    def map(self, function: Callable[[F64], F64], values: F64) -> F64:
        """[R] ``function`` of rows [n, size] → [n, size], applied to the values of each group."""
        result = np.zeros(len(values))
        for _, places in self._by_size:
            result[places] = function(values[places])
        return result

    def reduce(self, function: Callable[[F64], F64], values: F64) -> F64:
        """[count] ``function`` of rows [n, size] → [n], applied to the values [R] of each group."""
        result = np.zeros(self.count)
        for groups, places in self._by_size:
            result[groups] = function(values[places])
        return result

    def sum(self, values: F64) -> F64:
        """[count] the exactly rounded sum of each group's values [R]."""
        return self._once("sum", values, lambda: self.reduce(row_sums, values))

    def ranges(self, values: F64) -> F64:
        """[count] the largest less the smallest of each group's values [R]."""
        return self.reduce(lambda rows: np.ptp(rows, axis=1), values)

    def offsets(self, values: F64) -> F64:
        """[R] each value less its group's mean, rounded once; 0 where all are equal."""
        return self._once("offsets", values, lambda: self.map(row_offsets, values))

    def _once(self, name: str, values: F64, compute: Callable[[], F64]) -> F64:
        if self._known is None:
            return compute()
        wanted = name, values.tobytes()
        if wanted not in self._known:
            self._known[wanted] = compute()
        return self._known[wanted].copy()

    def count_tokens(self, lengths: I64) -> I64:
        """[R] the tokens in the whole group of each response."""
        per_group = np.bincount(self.index, weights=lengths, minlength=self.count)
        return per_group.astype(np.int64)[self.index]


class Penalised(Groups):
    """Groups of rewards off which a penalty was taken: each of the two is centred by itself.

    r − p is rounded to the digits of r; r − r̄ and p − p̄ are not, so a large common offset of the
    rewards costs no digit of the penalty.

    Args:
        groups: the groups.
        rewards: [R] r − p, the very array that ``offsets`` will be asked for.
        penalties: [R] p.
    """

    def __init__(self, groups: Groups, rewards: F64, task_rewards: F64, penalties: F64) -> None:
        super().__init__(groups.index, groups.count)
        self._groups = groups
        self._rewards, self._task_rewards, self._penalties = rewards, task_rewards, penalties

    def offsets(self, values: F64) -> F64:
        """As ``Groups`` has it; of the rewards, r − r̄ less p − p̄."""
        if values is not self._rewards:
            return self._groups.offsets(values)
        return self._groups.offsets(self._task_rewards) - self._groups.offsets(self._penalties)


def suffix_sums(values: F64, segments: Segments, discount: float) -> F64:
    """[N] Σₛ≥ₜ discount^(s−t)·values[s], s and t in the same segment.

    Each round doubles the reach of every element's sum, so a segment of T elements takes log₂ T
    rounds, and its sums depend on its own elements only.

    References:
        Hillis and Steele, Data Parallel Algorithms, 1986.
    """
    sums = values.copy()
    left = np.repeat(segments.starts + segments.lengths, segments.lengths) - np.arange(len(values))
    reach = 1
    longest = int(segments.lengths.max(initial=0))
    while reach < longest:
        further = discount**reach * sums[reach:]
        np.add(sums[:-reach], further, out=sums[:-reach], where=left[:-reach] > reach)
        reach *= 2
    return sums
