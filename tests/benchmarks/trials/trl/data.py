"""A record as the loss sees it: flat columns of the tokens that count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trials.product import Record
from trials.simulate.policy import F64, I64
from trials.simulate.rewards import advantages, summed


@dataclass(frozen=True)
class Data:
    """R responses, N tokens that count, and what the loss is told.

    Attributes:
        new, old, ref: [N] log-probs; ref is new where there is none.
        index: [N] the response of each token.
        count: R.
        advantages: [R] given, or as TRL computes them from the rewards.
        rewards, groups: [R] where the record has them.
        written: [R] tokens of each response with those that the mask takes out.
        kept: [as written] which tokens count.
        hyper: the record's hyperparameters.
        framework: which loss it was.
    """

    new: F64
    old: F64
    ref: F64
    index: I64
    count: int
    advantages: F64
    rewards: F64 | None
    groups: I64
    written: I64
    kept: np.ndarray
    hyper: dict[str, Any]
    framework: dict[str, Any]

    @property
    def lengths(self) -> F64:
        """[R] tokens that count, at least 1."""
        return np.maximum(np.bincount(self.index, minlength=self.count), 1).astype(float)


NAMES = {
    "new": ("per_token_logps", "log_probs_new"),
    "old": ("old_per_token_logps", "log_probs_old"),
    "ref": ("ref_per_token_logps", "log_probs_ref"),
}


def data(record: Record) -> Data:
    """What the loss sees of a record."""
    columns = {name: _column(record, keys) for name, keys in NAMES.items()}
    shape = next(rows for rows in columns.values() if rows)
    written = np.array([len(row) for row in shape])
    mask = record.get("completion_mask") or [[1] * len(row) for row in shape]
    kept = np.concatenate([np.asarray(row, dtype=bool) for row in mask])
    new = _flat(columns["new"], kept)
    index = np.repeat(np.arange(len(shape)), written)[kept]
    scores = record.get("rewards")
    groups = np.unique(record.get("group_ids", [0] * len(shape)), return_inverse=True)[1]
    rewards = None if scores is None else summed(np.array(scores, dtype=float))
    return Data(
        new,
        _flat(columns["old"], kept) if columns["old"] else new,
        _flat(columns["ref"], kept) if columns["ref"] else new,
        index,
        len(shape),
        _advantages(record, rewards, groups),
        rewards,
        groups,
        written,
        kept,
        record["hyperparameters"],
        record["framework"],
    )


def _column(record: Record, keys: tuple[str, ...]) -> Any:
    return next((record[key] for key in keys if key in record), None)


def _flat(column: Any, kept: np.ndarray) -> F64:
    return np.concatenate([np.asarray(row, dtype=np.float64) for row in column])[kept]


def _advantages(record: Record, rewards: F64 | None, groups: I64) -> F64:
    if "advantages" in record:
        return np.array(record["advantages"], dtype=np.float64)
    assert rewards is not None
    scaled = record["framework"].get("scale_rewards") != "none"
    return advantages(rewards, groups, "group-std" if scaled else "group-mean", 1e-4)
