"""What the responses of each step say together: rewards, groups, lengths."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64
from grpo_cli.commands.trend.limits import vanished
from grpo_cli.commands.trend.onsets import LEAST_FUTURE, LEAST_PAST
from grpo_cli.commands.trend.sums import NO_NUMBER, OF_SPREAD, Ragged
from grpo_cli.commands.trend.watched import ROWS

_ONCE = ((0.0, 1.0), (-1.0, 1.0))
"""Rewards that say whether a response is right and nothing else: wrong, right."""
_RIGHT = 1.0
_LEAST_FREE = 24


class Responses:
    """The responses of S steps. Numbers are [S], NaN where the responses do not say them."""

    def __init__(self, rows: Mapping[str, Ragged]) -> None:
        self.rewards, self.lengths, self._advantages = (
            rows[name] for name in ("reward", "length", "advantage")
        )
        self._hashes, self._first = rows["hash"], (rows["first_ref"], rows["first"])
        self._groups, self._moves = rows["group"], rows["log_ratio"]
        self._labels, self._prompts = rows["label"], rows["prompt"]
        self._count = self.rewards.widths

    # ---- rewards ------------------------------------------------------------------------------

    @cached_property
    def scored(self) -> NDArray[np.bool_]:
        """[S] whether there is a response, and each has a reward."""
        known = self.rewards._replace(values=~np.isnan(self.rewards.values))
        return (self._count > 0) & known.reduced(np.logical_and, 1)

    def of_rewards(self, by: np.ufunc) -> F64:
        """The largest, or the least."""
        return self._if_scored(self.rewards.reduced(by, NO_NUMBER))

    def _if_scored(self, values: F64) -> F64:
        return np.where(self.scored, values, NO_NUMBER)

    @property
    def reward_mean(self) -> F64:
        """Over responses."""
        return self._if_scored(means(self.rewards))

    @property
    def reward_std(self) -> F64:
        """Over responses, with n − 1."""
        return self._if_scored(deviations(self.rewards))

    @cached_property
    def _grouped(self) -> _Groups:
        return _Groups(self.rewards, self._groups, self._labels, self._prompts)

    @property
    def reward_group_std(self) -> F64:
        """The mean of the groups' standard deviations (n − 1), of groups of two and more."""
        groups = self._grouped
        return self._if_scored(means(groups.per_step(groups.spreads, groups.several)))

    @property
    def reward_length_corr(self) -> F64:
        """Of reward and length; NaN where either varies in no group."""
        lengths = self.lengths.values.astype(np.float64)
        return self._if_measured(self._correlation_with_rewards(lengths))

    @property
    def reward_advantage_corr(self) -> F64:
        """Of reward and the advantage that the record holds; NaN where either varies in no group.

        1 where advantages are the rewards, centred and scaled in each group.
        """
        return self._correlation_with_rewards(self._advantages.values)

    @property
    def reward_ratio_corr(self) -> F64:
        """Of reward and the mean of log π_new − log π_old; NaN where either varies in no group.

        Positive where an update between the two makes responses with more reward more likely. NaN
        of fewer than 24 responses after the first of each group, which chance correlates by a half.
        """
        sizes = self._grouped.rewards.widths.astype(np.float64)
        free = self._grouped.per_step(sizes - 1.0).sums()
        found = self._correlation_with_rewards(self._moves.values)
        return np.where(free >= _LEAST_FREE, found, NO_NUMBER)

    def _correlation_with_rewards(self, values: F64) -> F64:
        """[S] Pearson's correlation of rewards and other numbers [R] within groups.

        Σ (r − r̄)(x − x̄) / √(Σ (r − r̄)² · Σ (x − x̄)²), over all groups of a step, with the means
        of each group.
        """
        if np.isnan(values).all():
            return np.full(len(self._count), NO_NUMBER)
        groups = self._grouped
        r, x = offsets(groups.rewards), offsets(groups.ordered(values))
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            both, rewards, others = (
                Ragged(self._count, one).sums() for one in (r * x, r * r, x * x)
            )
            found = np.clip(both / (np.sqrt(rewards) * np.sqrt(others)), -1.0, 1.0)
        return self._if_scored(found)

    def share_of_groups(self, *rewards: float) -> F64:
        """How many groups have one reward throughout: this one, or any where none is given."""
        groups = self._grouped
        alike = groups.several & (groups.least == groups.most)
        if rewards:
            alike &= np.isin(groups.least, rewards)
        return self._if_scored(means(groups.per_step(alike.astype(np.float64), groups.several)))

    @cached_property
    def _judged(self) -> NDArray[np.bool_]:
        """[S] whether rewards say that an answer is right, or that it is wrong, and just that."""
        found = np.zeros(len(self._count), dtype=np.bool_)
        for pair in _ONCE:
            known = self.rewards._replace(values=np.isin(self.rewards.values, pair))
            found |= known.reduced(np.logical_and, 1)
        return found & self.scored

    def _if_judged(self, values: F64) -> F64:
        return np.where(self._judged, values, NO_NUMBER)

    @property
    def all_wrong(self) -> F64:
        """The share of groups without a right answer."""
        return self._if_judged(self.share_of_groups(0.0, -1.0))

    @property
    def all_right(self) -> F64:
        """The share of groups of right answers only."""
        return self._if_judged(self.share_of_groups(_RIGHT))

    @property
    def pass_at_1(self) -> F64:
        """The mean over groups of the share that is right."""
        return self._if_judged(means(self._grouped.per_step(self._right_shares)))

    @property
    def pass_at_k(self) -> F64:
        """The share of groups with a right answer, k being their size."""
        groups = self._grouped
        several = groups.per_step(groups.several.astype(np.float64)).sums() > 0.0
        some = means(groups.per_step((self._right_shares > 0.0).astype(np.float64)))
        return np.where(several, self._if_judged(some), NO_NUMBER)

    @cached_property
    def _right_shares(self) -> F64:
        """The share of each group that is right."""
        rewards = self._grouped.rewards
        return means(rewards._replace(values=(rewards.values == _RIGHT).astype(np.float64)))

    def dead_prompts(self) -> Iterator[tuple[Any, F64, F64]]:
        """Each prompt whose rewards become equal and stay so, with their means and deviations.

        Both are [S], NaN where a step lacks the prompt. The deviation of equal rewards is from the
        one that they have then. A prompt that is learnt has its largest reward, and is none.
        """
        groups, dead = self._grouped, ROWS[OF_SPREAD]
        known = ~np.isnan(groups.spreads) & (groups.prompts != None)  # noqa: E711 - of each
        numbers: dict[Any, int] = {}
        named = groups.prompts[known].tolist()
        of = np.array([numbers.setdefault(one, len(numbers)) for one in named], dtype=np.int64)
        counts = np.bincount(of)
        often = counts >= dead.gone_after + LEAST_FUTURE
        equal = np.bincount(of, groups.spreads[known] == 0.0)
        likely = np.flatnonzero(often & (equal >= LEAST_FUTURE) & (equal < counts))
        order, ends = np.flatnonzero(known)[np.argsort(of, kind="stable")], np.cumsum(counts)
        names, averages = [*numbers], means(groups.rewards)
        for prompt in likely.tolist():
            rows = order[ends[prompt] - counts[prompt] : ends[prompt]]
            mean = means(groups.per_step(averages, rows))
            spread = groups.per_step(groups.spreads, rows).reduced(np.fmax, NO_NUMBER)
            steps = np.flatnonzero(~np.isnan(spread))
            chance = partial(groups.chance_of_equal, rows)
            for equal in np.unique(mean[spread == 0.0]).tolist():
                away = np.where(spread == 0.0, np.abs(mean - equal), spread)
                for change in vanished(dead, away[steps], int(often.sum()), chance):
                    if equal < mean[steps[: change.at]].max():
                        yield names[prompt], mean, away

    @property
    def reference_moved(self) -> F64:
        """By how much the reference's log-probs of first tokens differ from those seen first.

        The mean over responses to a prompt that began with a token as one of an earlier step did,
        so that the reference has the same to go on.
        """
        prompts, numbers = self._grouped.prompts.tolist(), dict[Any, int]()
        named = [-1 if one is None else numbers.setdefault(one, len(numbers)) for one in prompts]
        sizes = self._grouped.rewards.widths
        values, tokens = (self._grouped.ordered(one.values).values for one in self._first)
        steps = np.repeat(np.arange(len(self._count)), self._count)
        keys = np.repeat(np.array(named, np.int64), sizes)
        kept = np.flatnonzero(~np.isnan(values) & (keys >= 0))
        keys = keys[kept] << 32 | tokens[kept]
        _, first, places = np.unique(keys, return_index=True, return_inverse=True)
        seen = kept[first[places]]
        later = steps[seen] < steps[kept]
        of, moved = steps[kept][later], np.abs(values[kept] - values[seen])[later]
        return means(Ragged(np.bincount(of, minlength=len(self._count)), moved))

    # ---- lengths ------------------------------------------------------------------------------

    def _if_measured(self, values: NDArray[np.generic]) -> F64:
        known = (self._count > 0) & (self.lengths.reduced(np.minimum, 0) >= 0)
        return np.where(known, values, NO_NUMBER)

    def of_lengths(self, by: np.ufunc) -> F64:
        """The longest, or the shortest."""
        return self._if_measured(self.lengths.reduced(by, 0))

    @property
    def length_mean(self) -> F64:
        """Tokens of a response."""
        return self._if_measured(self.lengths.reduced(np.add, 0) / np.maximum(self._count, 1))

    def length_quantile(self, share: float) -> F64:
        """The length that ``share`` of the responses do not exceed."""
        if not len(self.lengths.values):
            return self._if_measured(np.zeros(len(self._count)))
        shorter = np.maximum(np.ceil(share * self._count), 1).astype(np.int64)
        steps = np.repeat(np.arange(len(self._count)), self._count)
        places = np.lexsort((-self.lengths.values, steps))[np.cumsum(self._count) - shorter]
        return self._if_measured(self.lengths.values[places])

    @property
    def at_longest(self) -> F64:
        """The share of responses as long as the longest: those that were cut off, where any."""
        longest = np.repeat(self.lengths.reduced(np.maximum, 0), self._count)
        found = self.lengths._replace(values=(self.lengths.values == longest).astype(np.int64))
        return self._if_measured(found.reduced(np.add, 0) / np.maximum(self._count, 1))

    @property
    def copies(self) -> F64:
        """The share of responses that have the log-probs of an earlier one of the step."""
        steps = np.repeat(np.arange(len(self._count)), self._count)
        order = np.argsort(self._hashes.values, kind="stable")  # of one hash in their order
        hashes, steps = self._hashes.values[order], steps[order]
        again = (np.diff(hashes) == 0) & (np.diff(steps) == 0) & (hashes[1:] != 0)
        copied = np.bincount(steps[1:][again], minlength=len(self._count))
        known = self._hashes._replace(values=self._hashes.values != 0).reduced(np.logical_or, 0)
        return np.where(known, copied / np.maximum(self._count, 1), NO_NUMBER)


class _Groups:
    """The groups of S steps, in the order of the steps.

    A group is what one record calls so. Where the pieces of a step are uneven or single, because a
    trainer shuffled its rows, those with the same name are one group.

    Attributes:
        rewards: those of each group.
        prompts: what each is called, or its record; None where there is no name.
        several: whether it has two responses and more.
        least, most: the least and the largest reward of each group.
    """

    def __init__(self, rewards: Ragged, groups: Ragged, labels: Ragged, prompts: Ragged) -> None:
        starts = np.cumsum(labels.widths) - labels.widths
        numbers = groups.values + np.repeat(starts, groups.widths)
        self._steps: I64 = np.repeat(np.arange(len(labels.widths)), labels.widths)
        if any(label is not None for label in labels.values.tolist()):
            numbers = _joined_by_name(numbers, labels, starts)
        self._order = np.argsort(numbers, kind="stable")
        sizes = np.bincount(numbers, minlength=len(self._steps))
        self._steps = self._steps[sizes > 0]
        self._sizes: I64 = sizes[sizes > 0]
        self.prompts = prompts.values[sizes > 0]
        self.rewards = self.ordered(rewards.values)
        self.several = self.rewards.widths > 1
        self._count = len(labels.widths)
        self.least = self.rewards.reduced(np.minimum, NO_NUMBER)
        self.most = self.rewards.reduced(np.maximum, NO_NUMBER)

    def ordered(self, values: NDArray[np.generic]) -> Ragged:
        """A number of each response, by group."""
        return Ragged(self._sizes, values[self._order])

    def per_step(self, values: F64, kept: NDArray[Any] | None = None) -> Ragged:
        """A number of each group that is kept, by step; ``kept``: a mask, or their places."""
        steps = self._steps if kept is None else self._steps[kept]
        values = values if kept is None else values[kept]
        return Ragged(np.bincount(steps, minlength=self._count), values)

    def chance_of_equal(self, rows: I64, number: int) -> float:
        """How often a prompt's group has the rewards of one by chance.

        That is the share of the reward in the ten steps before, and a standard error, to the power
        of the group's size.

        Args:
            rows: the places of the prompt's groups.
            number: which of its steps.
        """
        steps = self._steps[rows]
        at = int(np.searchsorted(steps, np.unique(steps)[number]))
        known = self.rewards.taken(rows[max(at - LEAST_PAST, 0) : at]).values
        share = float((known == self.least[rows[at]]).mean())
        error = math.sqrt(share * (1.0 - share) / len(known))
        return min(share + error, 1.0) ** int(self.rewards.widths[rows[at]])

    @cached_property
    def spreads(self) -> F64:
        """The standard deviation of each, exactly 0 where its rewards are equal."""
        return np.where(self.least == self.most, 0.0, deviations(self.rewards))


def _joined_by_name(numbers: I64, labels: Ragged, starts: I64) -> I64:
    """The number of each response's group, with groups of one name put together where torn."""
    sizes = Ragged(labels.widths, np.bincount(numbers, minlength=len(labels.values)))
    least, most = sizes.reduced(np.minimum, 0), sizes.reduced(np.maximum, 0)
    numbered = np.arange(len(labels.values))
    names = [*labels.lists()]
    for step in np.flatnonzero((least != most) | (most == 1)).tolist():
        if None not in names[step]:
            first = {label: at for at, label in enumerate(dict.fromkeys(names[step]))}
            begin = int(starts[step])
            numbered[begin : begin + len(names[step])] = [
                begin + first[label] for label in names[step]
            ]
    found: I64 = numbered[numbers]
    return found


def means(values: Ragged) -> F64:
    """[S] the mean of each step's numbers, of an exact sum; NaN where it has none."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found: F64 = values.sums() / values.widths
    return found


def offsets(values: Ragged) -> F64:
    """Each number minus the mean of its step's."""
    found: F64 = values.values - np.repeat(means(values), values.widths)
    return found


def deviations(values: Ragged) -> F64:
    """[S] the standard deviation (n − 1) of each step's numbers; NaN of fewer than two."""
    with np.errstate(invalid="ignore", divide="ignore"):
        squares = values._replace(values=offsets(values) ** 2).sums()
        found: F64 = np.sqrt(squares / (values.widths - 1))
    return np.where(values.widths > 1, found, NO_NUMBER)
