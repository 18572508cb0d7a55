"""Records as flat ragged arrays: tokens in responses, responses in groups and records.

Nothing is padded. A token column is one float64 array over all tokens that count, response after
response; masked tokens were removed when the records were read, so no formula ever meets one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, starmap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


class Segments:
    """Consecutive runs of a flat array: tokens of responses, or responses of records.

    Args:
        lengths: [S] how many elements each segment has; 0 is allowed.
    """

    def __init__(self, lengths: I64) -> None:
        self.lengths = lengths
        self.count = len(lengths)
        self.total = int(lengths.sum())

    @cached_property
    def starts(self) -> I64:
        """[S] where each segment begins."""
        return np.concatenate(([0], np.cumsum(self.lengths[:-1]))) if self.count else self.lengths

    @cached_property
    def index(self) -> I64:
        """[total] the segment that each element belongs to."""
        return np.repeat(np.arange(self.count), self.lengths)

    def owners(self, elements: Any) -> I64:
        """The segments of some elements, without ``index``, which is large."""
        found: I64 = np.searchsorted(np.cumsum(self.lengths), elements, side="right")
        return found

    @cached_property
    def positions(self) -> I64:
        """[total] each element's index in its segment."""
        return np.arange(self.total) - np.repeat(self.starts, self.lengths)

    @cached_property
    def _filled(self) -> NDArray[np.bool_] | None:
        return None if self.lengths.all() else self.lengths > 0

    def sum(self, values: NDArray[Any], dtype: DTypeLike | None = None) -> NDArray[Any]:
        """[S] the sum of each segment's elements, in their type or another; 0 for an empty one.

        A segment's sum depends on its own elements only, never on its place in the array,
        so a response gives the same bits whatever it is evaluated with.
        """
        if self._filled is None:
            return np.add.reduceat(values, self.starts, dtype=dtype) if self.count else np.zeros(0)
        sums = np.zeros(self.count, dtype=dtype or values.dtype)
        if self.total:
            sums[self._filled] = np.add.reduceat(values, self.starts[self._filled], dtype=dtype)
        return sums

    def mean(self, values: NDArray[Any]) -> F64:
        """[S] the mean of each segment's elements; 0 for an empty one."""
        return self.sum(values) / np.maximum(self.lengths, 1)

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """[total] each segment's value, repeated for its elements."""
        return np.repeat(values, self.lengths)


def borders(keys: Sequence[Hashable]) -> list[int]:
    """Where the key of neighbours changes, with the beginning and the end: what ``cuts`` takes."""
    changes = [at for at, (one, other) in enumerate(pairwise(keys), 1) if one != other]
    return [0, *changes, len(keys)]


class Cut(NamedTuple):
    """Records of a batch that follow each other: where they, and what they have, stand in it."""

    records: slice
    groups: slice
    responses: slice
    tokens: slice

    @property
    def counts(self) -> list[int]:
        """How many records, groups, responses and tokens they are."""
        return [each.stop - each.start for each in self]


def cut_turns(responses: Segments, turn_ids: I64 | F64 | None, positions: I64 | None) -> Segments:
    """The tokens of responses cut into turns, as ``Batch.turns`` says."""
    filled = responses.lengths[responses.lengths > 0]
    if turn_ids is None and positions is None:
        return Segments(filled)
    changes = np.zeros(responses.total, dtype=np.bool_)
    if turn_ids is not None:
        changes[1:] = np.diff(turn_ids) != 0
    elif positions is not None:
        changes[1:] = np.diff(positions) != 1
    changes[np.cumsum(filled) - filled] = True
    return Segments(np.diff(np.append(np.flatnonzero(changes), responses.total)))


def count_turns(responses: Segments, turns: Segments) -> I64:
    """[R] the turns of each response."""
    filled = responses.lengths > 0
    if turns.count == np.count_nonzero(filled):  # each that has tokens has one
        return filled.astype(np.int64)
    return np.bincount(responses.owners(turns.starts), minlength=responses.count)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Batch:
    """What the stages read. N tokens in R responses, in M records; float64, nats.

    ``responses`` cuts the tokens into responses and ``records`` the responses into records.
    ``groups`` [R] numbers the group of each response (0-based, a group never spans records);
    responses of one group need not be neighbours. ``rewards`` is [R], or [R, K] with one column
    per reward function (NaN where it gave none), and ``reward_baselines`` [R] that of a greedy
    response to the prompt.
    ``values`` [N] are a critic's, ``sum_pi_squared`` [N] is Σ π² over the vocabulary.
    ``advantages`` is [R]; ``token_advantages`` [N] takes its place when the record gives them
    token by token.

    ``ratios`` [N] are importance ratios that the record gives itself; they are used as they are.
    When they come without probabilities, ``log_probs_new`` and ``log_probs_old`` are None and only
    stages that need nothing but the ratio can run.

    A response may be the turns of an agent: ``turn_ids`` [N] is the number that its own response
    gives to each token's turn (see ``turns``), with ``turn_rewards`` [turns], ``token_rewards`` [N]
    and ``state_ids`` [turns], the number within its group of the state that a turn began in, where
    the record gives these. A trajectory may be several responses, where each turn was
    written as one: ``trajectories`` [R] numbers the trajectory of each response (0-based, one never
    spans groups); None means that each response is a trajectory. ``weight_versions`` [N] are the
    versions of the weights that sampled each token, -1 where that is unknown.

    ``positions`` [N] is each token's index in its response as the user wrote it, masked tokens
    included; None means that nothing was masked. ``last_masked`` [R] are the responses whose last
    token as written is masked; None means that there is none.

    ``misnamed`` are columns of log-probs that the records lack, although a key that nothing reads
    resembles them: that key, and how it would be read.
    """

    responses: Segments
    records: Segments
    groups: I64
    group_count: int
    log_probs_new: F64 | None = None
    log_probs_old: F64 | None = None
    log_probs_ref: F64 | None = None
    log_probs_rollout: F64 | None = None
    entropies: F64 | None = None
    values: F64 | None = None
    sum_pi_squared: F64 | None = None
    ratios: F64 | None = None
    rewards: F64 | None = None
    reward_names: tuple[str, ...] = ()
    reward_baselines: F64 | None = None
    advantages: F64 | None = None
    token_advantages: F64 | None = None
    turn_ids: I64 | None = None
    turn_rewards: F64 | None = None
    state_ids: F64 | None = None
    token_rewards: F64 | None = None
    trajectories: I64 | None = None
    trajectory_count: int = 0
    weight_versions: I64 | None = None
    positions: I64 | None = None
    last_masked: NDArray[np.bool_] | None = None
    misnamed: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def summed_rewards(self) -> F64 | None:
        """[R] one reward per response: several functions count equally, one that gave none not."""
        rewards = self.rewards
        return rewards if rewards is None or rewards.ndim == 1 else np.nansum(rewards, axis=1)

    @property
    def record_tokens(self) -> Segments:
        """The tokens of each record."""
        return Segments(self.records.sum(self.responses.lengths))

    @property
    def names_turns(self) -> bool:
        """Whether turns or trajectories are named, not made of masks and responses alone."""
        named = (self.turn_ids, self.turn_rewards, self.trajectories)
        return any(one is not None for one in named)

    @property
    def turns(self) -> Segments:
        """The tokens cut into turns: a response has one or more, an empty one none.

        A turn ends where the turn's number changes; where none is given, at masked tokens, which a
        tool or the user wrote.
        """
        return cut_turns(self.responses, self.turn_ids, self.positions)

    def place(self, token: int) -> tuple[int, int, int]:
        """A token's record, its response in that record, and its position as written."""
        response = int(self.responses.owners(token))
        record = int(self.records.index[response])
        first = int(self.records.starts[record])
        if self.positions is not None:
            return record, response - first, int(self.positions[token])
        return record, response - first, token - int(self.responses.starts[response])

    @property
    def whole(self) -> Cut:
        """All of it."""
        counts = (self.records.count, self.group_count, self.responses.count, self.responses.total)
        return Cut(*(slice(0, count) for count in counts))

    def edges(self, records: Sequence[int]) -> I64:
        """[4, cuts] how many records, groups, responses and tokens are before some of its records.

        Args:
            records: their numbers, 0 first and the number of all last.
        """
        responses = np.append(self.records.starts, self.responses.count)[list(records)]
        tokens = np.append(self.responses.starts, self.responses.total)[responses]
        groups = np.append(0, np.maximum.accumulate(self.groups) + 1)[responses]
        return np.array([records, groups, responses, tokens])

    def cuts(self, records: Sequence[int]) -> Iterator[Cut]:
        """It cut before some of its records, as ``edges`` takes them."""
        each = (starmap(slice, pairwise(one)) for one in self.edges(records).tolist())
        yield from (Cut(*pair) for pair in zip(*each, strict=True))
