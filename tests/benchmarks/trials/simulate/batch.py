"""A simulated batch: flat columns with what happened at each token, before it is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trials.simulate.policy import F64, I64

END, PAD = 151_645, 151_643
"""Token ids of the end of text and of padding (Qwen's)."""


@dataclass
class Batch:
    """R responses, N tokens one after the other.

    Attributes:
        lengths: [R] tokens of each response.
        groups: [R] the prompt of each.
        columns: name → [N] log-probs and entropies, by the canonical names.
        ids: [N] token ids; END closes a response that was not cut.
        mask: [N] 1 where the model wrote the token; None where it wrote all.
        prompts: the token ids of each prompt.
        rewards: [R] or [R, functions].
        advantages: [R], or None.
        extra: further keys of every record.
        drop: columns that a fault takes out of the dump again.
    """

    lengths: I64
    groups: I64
    columns: dict[str, F64]
    ids: I64
    rewards: F64
    prompts: list[list[int]]
    mask: I64 | None = None
    advantages: F64 | None = None
    finished: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def starts(self) -> I64:
        return np.concatenate([[0], np.cumsum(self.lengths)[:-1]])

    @property
    def ends(self) -> I64:
        return np.cumsum(self.lengths)

    @property
    def rows(self) -> I64:
        """[N] the response of each token."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def places(self) -> I64:
        """[N] the position of each token in its response."""
        return np.arange(int(self.lengths.sum())) - np.repeat(self.starts, self.lengths)

    def spans(self) -> Iterator[slice]:
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            yield slice(start, end)

    def split(self, values: Any) -> list[Any]:
        """[N] → a list for each response."""
        return [values[span].tolist() for span in self.spans()]

    def copy(self) -> Batch:
        """One that a fault may change."""
        columns = {name: values.copy() for name, values in self.columns.items()}
        return replace(
            self,
            columns=columns,
            ids=self.ids.copy(),
            mask=None if self.mask is None else self.mask.copy(),
            rewards=self.rewards.copy(),
            advantages=None if self.advantages is None else self.advantages.copy(),
            extra=dict(self.extra),
        )

    def lengthened(self, more: I64, fill: dict[str, Any]) -> Batch:
        """With ``more`` tokens at the end of each response; ``fill``: column → values for them."""
        ends = np.repeat(self.ends, more)
        columns = {
            name: np.insert(values, ends, fill.get(name, 0.0))
            for name, values in self.columns.items()
        }
        mask = None if self.mask is None else np.insert(self.mask, ends, fill.get("mask", 1))
        ids = np.insert(self.ids, ends, fill.get("ids", PAD))
        return replace(self, lengths=self.lengths + more, columns=columns, ids=ids, mask=mask)
