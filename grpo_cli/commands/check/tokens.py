"""The tokens that count of consecutive records, as flat arrays that samples share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments

LOG_PROBS = ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout")
TURN = "turn"
"""The column of the number of each token's turn in its trajectory, of records with an engine's."""
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
        mixed: the key of the prompts, if rows that were put together differ in it; else empty.
        step: of the training, where it is a whole number; else -1.
    """

    name: str | int | float
    source: str
    line: int | None
    number: int
    claims: str = ""
    mixed: str = ""
    step: int = -1


def count_marked(segments: Segments, marked: NDArray[np.bool_]) -> I64:
    """Returns [S] how many elements of each segment are marked: most rules mark none."""
    if not marked.any():
        return np.zeros(segments.count, dtype=np.int64)
    found: I64 = segments.sum(marked.view(np.int8), np.int32).astype(np.int64)
    return found


@dataclass(eq=False)
class Tokens:
    """The tokens that count of consecutive records: N tokens, R responses, M records.

    Attributes:
        places: [M] where the records are in the input.
        names: canonical name → the user's key.
        counts: [M] responses of each record.
        lengths: [R] tokens of each response.
        positions: [N] each token's index in its response as written.
        columns: canonical name → [N], of columns that were not derived from others.
        samples: [M] the number of the sample in which each record is compared.
    """

    places: Sequence[Place]
    names: Mapping[str, str]
    counts: I64
    lengths: I64
    positions: I64
    columns: Mapping[str, F64]
    samples: I64

    @cached_property
    def records(self) -> Segments:
        """The responses of each record."""
        return Segments(self.counts)

    @cached_property
    def responses(self) -> Segments:
        """The tokens of each response."""
        return Segments(self.lengths)

    @cached_property
    def tokens(self) -> I64:
        """[M] tokens of each record."""
        return self.records.sum(self.lengths)

    @cached_property
    def distinct(self) -> Tokens:
        """The records without the tokens of responses that repeat another one of their record.

        Copies have equal lengths, and equal sums in all columns of log-probs.
        """
        sums = (self.responses.sum(column) for column in self.log_probs.values())
        keys = np.stack([self.records.index, self.lengths, *sums])
        order = np.lexsort(keys)
        copies = order[1:][(keys[:, order[1:]] == keys[:, order[:-1]]).all(axis=0)]
        if not self.lengths[copies].any():
            return self
        lengths = self.lengths.copy()
        lengths[copies] = 0
        kept = np.repeat(lengths > 0, self.lengths)
        columns = {name: column[kept] for name, column in self.columns.items()}
        return replace(self, lengths=lengths, positions=self.positions[kept], columns=columns)

    @cached_property
    def sample_starts(self) -> I64:
        """[S] the first record of each sample."""
        return np.flatnonzero(np.diff(self.samples, prepend=self.samples[:1] - 1))

    @cached_property
    def sample_index(self) -> I64:
        """[M] the index of each record's sample."""
        sizes = np.diff(self.sample_starts, append=len(self.counts))
        return np.repeat(np.arange(len(sizes)), sizes)

    @cached_property
    def spans(self) -> I64:
        """[R] tokens of each response from the first that counts to the last, masked ones too."""
        some = self.lengths > 0
        starts, ends = self.responses.starts[some], (self.responses.starts + self.lengths)[some]
        found = np.zeros(len(self.lengths), dtype=np.int64)
        found[some] = self.positions[ends - 1] - self.positions[starts] + 1
        return found

    @cached_property
    def holes(self) -> I64:
        """The tokens before masked ones that others of their response follow."""
        inside = np.diff(self.responses.index) == 0
        return np.flatnonzero(inside & (np.diff(self.positions) > 1))

    def rows_of(self, record: int) -> slice:
        """Returns the responses of a record."""
        start = int(self.records.starts[record])
        return slice(start, start + int(self.counts[record]))

    def tokens_of(self, record: int) -> slice:
        """Returns the tokens of a record."""
        start = int(self.record_tokens.starts[record])
        return slice(start, start + int(self.tokens[record]))

    @cached_property
    def record_tokens(self) -> Segments:
        """The tokens of each record."""
        return Segments(self.tokens)

    def count_rows(self, responses: NDArray[np.bool_]) -> I64:
        """Returns [M] how many responses of each record are marked."""
        return count_marked(self.records, responses)

    def count_tokens(self, tokens: NDArray[np.bool_]) -> I64:
        """Returns [R] how many of the tokens that count are marked in each response."""
        return count_marked(self.responses, tokens)

    def first_row(self, record: int, responses: NDArray[Any]) -> dict[str, Any]:
        """Returns the place of a record's first marked response, or that of its greatest number."""
        rows = self.rows_of(record)
        return self.at(rows.start + int(np.argmax(responses[rows])))

    def first_token(self, record: int, tokens: NDArray[Any]) -> dict[str, Any]:
        """Returns the place of a record's first marked token, or that of its greatest number."""
        part = self.tokens_of(record)
        return self.place(part.start + int(np.argmax(tokens[part])))

    def at(self, response: int) -> dict[str, Any]:
        """Returns the place of a response as the fields of a finding."""
        record = int(self.records.index[response])
        return {"record": record, "response": int(response - self.records.starts[record])}

    def place(self, token: int) -> dict[str, Any]:
        """Returns the place of a token as the fields of a finding."""
        return {**self.at(int(self.responses.owners(token))), "token": int(self.positions[token])}

    def key(self, name: str) -> str:
        """Returns the user's name of a column."""
        return self.names.get(name, name)

    @cached_property
    def log_probs(self) -> dict[str, F64]:
        """The columns of log-probs that the records have."""
        return {name: self.columns[name] for name in LOG_PROBS if name in self.columns}

    @property
    def policies(self) -> list[F64]:
        """[N] the new and the old log-probs, as far as the records have them."""
        return [self.columns[name] for name in LOG_PROBS[:2] if name in self.columns]

    @cached_property
    def chances(self) -> F64 | None:
        """[R] the log-prob of each response under the policy that finds it likelier."""
        with np.errstate(invalid="ignore"):
            sums = [self.responses.sum(column) for column in self.policies]
        return np.maximum.reduce(sums) if sums else None

    def whole_numbers(self, name: str) -> I64 | None:
        """[N] a column of whole numbers: ``TURN``, or versions of the weights (-1: unknown)."""
        found: NDArray[Any] | None = self.columns.get(name)
        return found

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The pairs of columns to compare, the most informative first."""
        found = [pair for pair in _PAIRS if {*pair} <= self.columns.keys()]
        if ("log_probs_old", "log_probs_rollout") in found:
            found = [pair for pair in found if pair != ("log_probs_new", "log_probs_rollout")]
        return found

    @property
    def layout(self) -> tuple[object, ...]:
        """The columns and names that records must share to be compared in one sample."""
        return tuple(self.columns), tuple(self.names.items())

    def take(self, records: NDArray[np.bool_]) -> Tokens:
        """Returns some of the records; all of them share their arrays with these."""
        if records.all():
            columns = self.counts, self.lengths, self.positions, self.columns, self.samples
            every = Tokens(self.places, self.names, *columns)
            every.responses, every.record_tokens = self.responses, self.record_tokens
            return every
        rows = np.repeat(records, self.counts)
        tokens = np.repeat(rows, self.lengths)
        return Tokens(
            [self.places[at] for at in np.flatnonzero(records).tolist()],
            self.names,
            self.counts[records],
            self.lengths[rows],
            self.positions[tokens],
            {name: column[tokens] for name, column in self.columns.items()},
            self.samples[records],
        )

    @staticmethod
    def join(parts: Sequence[Tokens]) -> Tokens:
        """Returns the records of several parts that have one layout."""
        if len(parts) == 1:
            return parts[0]
        return Tokens(
            [*chain.from_iterable(part.places for part in parts)],
            parts[0].names,
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.positions for part in parts]),
            {
                name: np.concatenate([part.columns[name] for part in parts])
                for name in parts[0].columns
            },
            np.concatenate([part.samples for part in parts]),
        )
