"""Random ragged batches, one description of each for the frameworks (padded) and for us (a record).

Nothing here knows a framework: a ``Ragged`` gives numpy arrays, padded to the right with what the
caller names, and a record as a file would hold it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli import evaluate
from grpo_cli.api import Evaluated

F64 = NDArray[np.float64]

KINDS = ("usual", "near", "extreme", "on-policy", "hollow", "singletons", "dead", "equal-lengths")
"""What ``ragged`` can make; each stresses one thing (see ``ragged``)."""

TOKEN_COLUMNS = (
    "log_probs_new",
    "log_probs_old",
    "log_probs_ref",
    "log_probs_rollout",
    "entropies",
)
MORE_COLUMNS = ("values", "sum_pi_squared")
"""What estimators of advantages may read."""


@dataclass(frozen=True)
class Ragged:
    """R responses of unequal lengths in groups of unequal sizes.

    Attributes:
        columns: name → one array per response, its tokens' values.
        mask: per response, 1 where a token counts; tokens with 0 stand between those that do.
        groups: [R] the group of each response, not necessarily in order.
        rewards: [R].
        advantages: [R], independent of the rewards, of both signs, some exactly 0.
    """

    columns: dict[str, list[F64]]
    mask: list[NDArray[np.int64]]
    groups: NDArray[np.int64]
    rewards: F64
    advantages: F64
    kind: str = "usual"
    seed: int = 0

    @property
    def count(self) -> int:
        """R."""
        return len(self.groups)

    @property
    def width(self) -> int:
        """The longest response, at least 1."""
        return max(1, *(len(row) for row in self.mask))

    @property
    def tokens(self) -> int:
        """How many tokens count."""
        return int(sum(row.sum() for row in self.mask))

    def unmasked(self) -> Ragged:
        """The same with every token counting."""
        return replace(self, mask=[np.ones_like(row) for row in self.mask])

    def padded(self, name: str) -> F64:
        """[R, T] a column, right-padded with 0; ``mask`` is a column too."""
        rows = self.mask if name == "mask" else self.columns[name]
        table = np.zeros((self.count, self.width))
        for index, row in enumerate(rows):
            table[index, : len(row)] = row
        return table

    def counted(self, table: Any) -> list[F64]:
        """A padded table [R, T] as one array per response, of the tokens that count."""
        rows = np.asarray(table, dtype=np.float64)
        return [rows[i, : len(m)][m.astype(bool)] for i, m in enumerate(self.mask)]

    def record(self, *names: str, rewards: bool = False, **more: Any) -> dict[str, Any]:
        """The batch as one record, ragged with a mask, as a file would hold it.

        Args:
            names: the token columns to give; all of them when none is named.
            rewards: give rewards instead of advantages.
            more: further keys, as ``hyperparameters={...}``.
        """
        given: dict[str, Any] = {
            name: [row.tolist() for row in self.columns[name]] for name in names or self.columns
        }
        given["mask"] = [row.tolist() for row in self.mask]
        given["group_ids"] = self.groups.tolist()
        if rewards:
            given["rewards"] = _written(self.rewards.tolist())
        else:
            given["advantages"] = self.advantages.tolist()
        return given | more


def _written(rewards: list[Any]) -> list[Any]:
    """NaN, of a function that gave none, as null."""
    rows = (row if isinstance(row, list) else [row] for row in rewards)
    nulls = [[None if value != value else value for value in row] for row in rows]
    return nulls if isinstance(rewards[0], list) else [row[0] for row in nulls]


def given(record: Mapping[str, Any]) -> Ragged:
    """A record as a batch; log-probs that it has not are the current ones, what else it lacks 0."""
    mask = [np.array(row, dtype=np.int64) for row in record["mask"]]
    fill = dict.fromkeys(TOKEN_COLUMNS, record["log_probs_new"])
    fill["entropies"] = [[0.0] * len(row) for row in mask]
    names = [name for name in (*TOKEN_COLUMNS, *MORE_COLUMNS) if name in record or name in fill]
    columns = {
        name: [np.array(row, dtype=np.float64) for row in record.get(name, fill.get(name))]
        for name in names
    }
    zeros = np.zeros(len(mask))
    rewards, advantages = (record.get(name, zeros) for name in ("rewards", "advantages"))
    return Ragged(
        columns, mask, np.array(record["group_ids"]), np.array(rewards), np.array(advantages)
    )


def ragged(seed: int, kind: str = "usual", *, group_size: int | None = None) -> Ragged:
    """A random batch.

    Kinds: ``usual`` (log ratios of a few tenths); ``near`` (of thousandths, as sequence clips
    want); ``extreme`` (up to ±25 nats); ``on-policy`` (every ratio exactly 1); ``hollow`` (empty
    responses, and responses whose every token is masked); ``singletons`` (groups of one among
    others); ``dead`` (groups whose rewards are all equal); ``equal-lengths``.

    Args:
        seed: of numpy's default generator.
        kind: one of ``KINDS``.
        group_size: equal groups of this size, in order (trainers want that); else random sizes,
            shuffled.
    """
    draw = np.random.default_rng([seed, KINDS.index(kind)])
    sizes = _sizes(draw, kind, group_size)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    if group_size is None:
        draw.shuffle(groups)
    lengths = _lengths(draw, kind, len(groups))
    columns = _columns(draw, kind, lengths)
    mask = [(draw.random(n) < 0.85).astype(np.int64) for n in lengths]
    if kind == "hollow":
        mask[int(draw.integers(len(mask)))][:] = 0
    elif not any(row.sum() for row in mask):
        mask[0][:] = 1
    return Ragged(
        columns=columns,
        mask=mask,
        groups=groups,
        rewards=_rewards(draw, kind, groups),
        advantages=draw.normal(size=len(groups)) * (draw.random(len(groups)) < 0.9),
        kind=kind,
        seed=seed,
    )


def far(seed: int) -> Ragged:
    """``usual`` with every token of the new policy 15 to 60 nats likelier than of the old one."""
    batch = ragged(seed)
    draw = np.random.default_rng([seed, len(KINDS)])
    shifts = draw.uniform(15.0, 60.0, size=batch.count)
    columns = dict(batch.columns)
    for name in columns.keys() - {"entropies", "log_probs_new"}:
        columns[name] = [row - d for row, d in zip(columns[name], shifts, strict=True)]
    return replace(batch, columns=columns, kind="far")


def _sizes(draw: np.random.Generator, kind: str, group_size: int | None) -> NDArray[np.int64]:
    count = int(draw.integers(2, 5))
    if group_size is not None:
        return np.full(count, group_size)
    sizes = draw.integers(2, 6, size=count)
    if kind == "singletons":
        sizes[: max(1, count // 2)] = 1
    return sizes


def _lengths(draw: np.random.Generator, kind: str, count: int) -> list[int]:
    if kind == "equal-lengths":
        return [int(draw.integers(1, 12))] * count
    lengths = draw.integers(1, 14, size=count)
    if kind == "hollow":
        lengths[draw.random(count) < 0.3] = 0
    return [int(n) for n in lengths]


_SPREAD = {"near": 5e-4, "extreme": 9.0, "on-policy": 0.0}


def _columns(draw: np.random.Generator, kind: str, lengths: list[int]) -> dict[str, list[F64]]:
    columns: dict[str, list[F64]] = {name: [] for name in TOKEN_COLUMNS}
    spread = _SPREAD.get(kind, 0.25)
    for length in lengths:
        depth = 26.0 if kind == "extreme" else 0.2
        old = -depth - draw.exponential(1.2, size=length)
        steps = np.clip(draw.normal(size=(3, length)) * [[spread], [0.3], [0.15]], -25.0, 25.0)
        columns["log_probs_old"].append(old)
        columns["log_probs_new"].append(np.minimum(old + steps[0], -1e-6))
        columns["log_probs_ref"].append(np.minimum(old + steps[1], -1e-6))
        columns["log_probs_rollout"].append(np.minimum(old + steps[2], -1e-6))
        # single precision, so that a quantile of them is the same number in either precision
        entropies = draw.exponential(0.8, size=length).astype(np.float32)
        columns["entropies"].append(entropies.astype(np.float64))
    return columns


def _rewards(draw: np.random.Generator, kind: str, groups: NDArray[np.int64]) -> F64:
    rewards = draw.choice([0.0, 0.1, 0.25, 0.5, 1.0, -0.3], size=len(groups))
    if kind == "dead":
        for group in np.unique(groups)[::2]:
            rewards[groups == group] = draw.choice([0.0, 0.1, 1.0])
    return rewards


# ---- our numbers --------------------------------------------------------------------------------


def evaluated(
    batch: Ragged,
    variant: str,
    *,
    stages: dict[str, str] | None = None,
    columns: tuple[str, ...] = (),
    rewards: bool = False,
    more: dict[str, Any] | None = None,
    **hyperparameters: Any,
) -> Evaluated:
    """``grpo_cli.evaluate`` on the batch as a record, with the given columns (default: all).

    Args:
        more: what else the record has, as ``{"framework": {…}}``.
    """
    record = batch.record(*columns, rewards=rewards, **more or {})
    return evaluate(record, variant, stages=stages, **hyperparameters)


def flat(rows: list[F64]) -> F64:
    """One array of all responses' tokens."""
    return np.concatenate(rows) if rows else np.zeros(0)
