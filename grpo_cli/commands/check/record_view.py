"""Records as flat arrays, as the rules see them: impossible values are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments

LOG_PROBS = ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout")
_PAIRS = (
    ("log_probs_new", "log_probs_old"),
    ("log_probs_old", "log_probs_rollout"),
    ("log_probs_new", "log_probs_rollout"),
    ("log_probs_new", "log_probs_ref"),
)


class Place(NamedTuple):
    """The place of a record in the input.

    Attributes:
        name: its id, or else its number.
        source: the file as the user named it.
        line: its 1-based line, if it has one.
        number: its 0-based number in the file.
        claims: the setting by which it claims to be on policy; empty if it does not.
    """

    name: str | int | float
    source: str
    line: int | None
    number: int
    claims: str = ""


@dataclass(eq=False)
class View:
    """Consecutive records with the same columns. N tokens as written, R responses, M records.

    Nothing is refused: log-probs may be positive or not finite.

    Attributes:
        places: [M] where the records are in the input.
        values: [M] the decoded objects; empty where they were dropped.
        counts: [M] responses of each record.
        widths: [R] tokens of each response as written.
        columns: canonical token column → [N] as written.
        mask: [N] which tokens count; None if all do.
        groups: [R] a number for each group of each record, in order.
        names: canonical name → the user's key.
        derived: columns that were computed from probabilities or ratios.
        rewards: [R], or [R, K] of several functions; None if there are none.
        advantages: [R]; None if there are none, or one per token.
        advantages_given: whether there are any.
        samples: [M] the number of the sample that each record is compared in; None if each
            record is a sample of its own.
    """

    places: Sequence[Place]
    values: Sequence[dict[str, Any]]
    counts: I64
    widths: I64
    columns: Mapping[str, F64]
    mask: NDArray[np.bool_] | None
    groups: I64
    names: Mapping[str, str]
    derived: tuple[str, ...] = ()
    rewards: F64 | None = None
    advantages: F64 | None = None
    advantages_given: bool = False
    samples: I64 | None = None

    # ---- tokens and responses -------------------------------------------------------------

    @cached_property
    def records(self) -> Segments:
        """The responses of each record."""
        return Segments(self.counts)

    @cached_property
    def written(self) -> Segments:
        """The tokens of each response as written."""
        return Segments(self.widths)

    @cached_property
    def responses(self) -> Segments:
        """The tokens of each response that count."""
        if self.mask is None:
            return self.written
        return Segments(np.bincount(self.written.index[self.mask], minlength=len(self.widths)))

    @cached_property
    def tokens(self) -> I64:
        """[M] tokens of each record that count."""
        return self.records.sum(self.responses.lengths)

    @cached_property
    def positions(self) -> I64:
        """[counted] each token's index in its response as written."""
        places = np.arange(self.written.total) - self.written.spread(self.written.starts)
        return places if self.mask is None else places[self.mask]

    @property
    def sample_numbers(self) -> I64:
        """[M] the number of each record's sample, which is the same in every piece."""
        return np.arange(len(self.counts)) if self.samples is None else self.samples

    @cached_property
    def sample_starts(self) -> I64:
        """[S] the first record of each sample."""
        return np.flatnonzero(np.diff(self.sample_numbers, prepend=-1) != 0)

    @cached_property
    def sample_index(self) -> I64:
        """[M] the index of each record's sample in this view."""
        lengths = np.diff(self.sample_starts, append=len(self.counts))
        return np.repeat(np.arange(len(lengths)), lengths)

    def rows_of(self, record: int) -> slice:
        """Returns the responses of a record."""
        start = int(self.records.starts[record])
        return slice(start, start + int(self.counts[record]))

    def tokens_of(self, record: int) -> slice:
        """Returns the tokens of a record that count."""
        start = int(self._record_tokens.starts[record])
        return slice(start, start + int(self.tokens[record]))

    @cached_property
    def _record_tokens(self) -> Segments:
        return Segments(self.tokens)

    def local(self, response: int) -> tuple[int, int]:
        """Returns a response's record and its index in that record."""
        record = int(self.records.index[response])
        return record, int(response - self.records.starts[record])

    def place(self, token: int) -> dict[str, int]:
        """Returns the place of a token as the fields of a finding."""
        record, response = self.local(int(self.responses.index[token]))
        return {"record": record, "response": response, "token": int(self.positions[token])}

    def at(self, response: int) -> dict[str, int]:
        """Returns the place of a response as the fields of a finding."""
        record, local = self.local(response)
        return {"record": record, "response": local}

    # ---- columns --------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether the records have the column, and it is not derived from another."""
        return name in self.columns and name not in self.derived

    def has_field(self, name: str) -> bool:
        """Whether the records have a field; all records of a view have it, or none."""
        if name in LOG_PROBS:
            return self.has(name)
        if name == "rewards":
            return self.rewards is not None or "rewards" in self.names
        return name in self.names

    def key(self, name: str) -> str:
        """Returns the user's name of a column."""
        return self.names.get(name, name)

    def column(self, name: str) -> F64 | None:
        """Returns [counted] the values of a column at the tokens that count; None without it."""
        if not self.has(name):
            return None
        whole = self.columns[name]
        return whole if self.mask is None else whole[self.mask]

    @cached_property
    def log_probs(self) -> dict[str, F64]:
        """The columns of log-probs that the records have."""
        found = {name: self.column(name) for name in LOG_PROBS}
        return {name: values for name, values in found.items() if values is not None}

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The pairs of columns to compare, the most informative first."""
        found = [pair for pair in _PAIRS if all(name in self.log_probs for name in pair)]
        if ("log_probs_old", "log_probs_rollout") in found:
            found = [pair for pair in found if pair != ("log_probs_new", "log_probs_rollout")]
        return found

    # ---- groups ---------------------------------------------------------------------------

    @cached_property
    def sizes(self) -> I64:
        """[groups] responses of each group."""
        return np.bincount(self.groups)

    @cached_property
    def _grouped(self) -> tuple[I64, I64]:
        order = np.argsort(self.groups, kind="stable")
        return order, np.cumsum(self.sizes) - self.sizes

    def members(self, group: int) -> I64:
        """Returns the responses of a group."""
        order, starts = self._grouped
        return order[starts[group] : starts[group] + self.sizes[group]]

    def by_group(self, values: F64, reduce: np.ufunc) -> F64:
        """Returns [groups] the values of each group's responses, reduced."""
        order, starts = self._grouped
        found: F64 = reduce.reduceat(values[order], starts) if len(order) else values
        return found

    @cached_property
    def first_members(self) -> I64:
        """[groups] the first response of each group."""
        order, starts = self._grouped
        return order[starts]

    @property
    def layout(self) -> tuple[object, ...]:
        """The columns and names that records must share to be compared in one sample."""
        return tuple(self.columns), self.derived, tuple(self.names.items())

    @cached_property
    def names_groups(self) -> bool:
        """Whether the records say which responses belong together."""
        return "group_ids" in self.names or "group_size" in self.names

    @cached_property
    def summed(self) -> F64 | None:
        """[R] one reward per response, several functions added up."""
        if self.rewards is None or self.rewards.ndim == 1:
            return self.rewards
        return np.nansum(self.rewards, axis=1)

    # ---- words ----------------------------------------------------------------------------

    @cached_property
    def ids(self) -> I64 | None:
        """[N] a number for each token as written: its id, or else that of its string."""
        for name in ("token_ids", "tokens"):
            key = self.names.get(name)
            if key is not None and self.values:
                return self._flat(key)
        return None

    def _flat(self, key: str) -> I64 | None:
        flat: list[Any] = []
        for value in self.values:
            flat += _joined(value[key])
        if len(flat) != self.written.total:
            return None
        try:
            if flat and isinstance(flat[0], str):
                numbers = self.words if key == self.names.get("tokens") else _numbered(flat)
                flat = [numbers[word] for word in flat]
            return np.array(flat, dtype=np.int64)
        except (TypeError, ValueError, OverflowError):
            return None

    @cached_property
    def words(self) -> Mapping[str, int]:
        """The number of each different string in ``tokens``, as in ``ids``.

        Raises:
            TypeError: where tokens are nested in several ways.
        """
        key = self.names["tokens"]
        return _numbered(chain.from_iterable(_joined(value[key]) for value in self.values))

    @cached_property
    def counted_ids(self) -> I64 | None:
        """[counted] a number for each token that counts."""
        if self.ids is None or self.mask is None:
            return self.ids
        return self.ids[self.mask]

    def word(self, number: int) -> str:
        """Returns the name of a token in messages: its id, or its string."""
        key = self.names.get("token_ids")
        if key is not None:
            return f"token {number}"
        return repr(list(self.words)[number])


def _numbered(words: Iterable[str]) -> dict[str, int]:
    return {word: number for number, word in enumerate(dict.fromkeys(words))}


def _joined(rows: Any) -> list[Any]:
    """Returns the elements of nested lists of any depth."""
    flat = rows if isinstance(rows, list) else rows.tolist()
    while any(map(_is_nested, flat[:1])):
        flat = [word for row in flat for word in (row if _is_nested(row) else [row])]
    return flat


def _is_nested(value: Any) -> bool:
    return isinstance(value, list) or getattr(value, "ndim", 0) > 0
