"""Simulated batches: tokens are drawn, every policy's log-probs computed, and records written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trials.product import KEYS, Record
from trials.simulate.policies import (
    F32,
    F64,
    I64,
    Dump,
    Random,
    Rewards,
    Setup,
    contexts_of,
    entropy,
    ids_of,
    kept,
    learned,
    logits_of,
    sample,
    scored,
    taken,
    updated,
)

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


# ---- rewards -------------------------------------------------------------------------------------


def rewards_of(random: Random, groups: I64, lengths: I64, rewards: Rewards) -> F64:
    """[R] or [R, functions]; prompts differ in difficulty, and some are solved always or never.

    binary: right or wrong. continuous: a score of a reward model, about N(prompt, 1).
    functions: right (0 or 1), format (0 or 0.5), brevity (0 to −0.5), one column each.
    shaped: right or wrong, less up to 0.2 for the length. solved: all right.
    """
    difficulty = random.beta(1.2, 1.2, int(groups.max()) + 1)[groups]
    right = (random.random(len(groups)) < difficulty).astype(np.float64)
    if rewards.kind == "solved":
        return np.ones(len(groups))
    if rewards.kind == "continuous":
        centre = random.normal(0.0, 1.5, int(groups.max()) + 1)[groups]
        return (centre + random.normal(0.0, 1.0, len(groups))).astype(np.float32).astype(float)
    brevity = -0.5 * np.minimum(lengths / 400.0, 1.0)
    if rewards.kind == "functions":
        tidy = 0.5 * (random.random(len(groups)) < 0.8)
        return np.stack([right, tidy, brevity.round(3)], axis=1)
    return right + 0.4 * brevity.round(4) if rewards.kind == "shaped" else right


def advantages(scores: F64, groups: I64, kind: str, eps: float) -> F64:
    """[R] in float32, as trainers compute them: r − r̄, over the group's std + eps for group-std."""
    scores = scores.astype(np.float32)
    found = np.zeros(len(scores), dtype=np.float32)
    for group in np.unique(groups):
        rows = groups == group
        own = scores[rows]
        found[rows] = own - own.mean()
        if kind == "group-std":
            spread = own.std(ddof=1) if len(own) > 1 else np.float32(0.0)
            found[rows] /= spread + np.float32(eps)
        if (own == own[0]).all():
            found[rows] = 0.0
    return found.astype(np.float64)


def summed(rewards: F64) -> F64:
    """[R] several functions added up."""
    return rewards if rewards.ndim == 1 else rewards.sum(axis=1)


# ---- the simulation ------------------------------------------------------------------------------


def simulate(setup: Setup, random: Random) -> Batch:
    """A batch of a healthy run; of a sick one where a fault changed the setup."""
    groups = _groups(setup, random)
    lengths, finished = _lengths(setup, random, len(groups))
    places = contexts_of(random, lengths, groups, setup.text)
    finished &= ~places.looping
    last = np.cumsum(lengths)[finished] - 1
    logits = logits_of(setup, random, places, last)
    sampling = setup.sampling
    served = scored(random, logits, setup.engine)
    allowed = None
    if sampling.truncated:
        allowed = kept(served, sampling.temperature, sampling.top_p, sampling.top_k)
    words = sample(random, served, sampling.temperature, allowed)
    words[last] = 0
    ids = ids_of(words, places)
    ids[last] = END
    scores = rewards_of(random, groups, lengths, setup.rewards)
    judged = advantages(
        summed(scores), groups, setup.rewards.given or "group-std", setup.rewards.eps
    )
    columns = _columns(setup, random, logits, served, words, allowed, np.repeat(judged, lengths))
    return Batch(
        lengths,
        groups,
        {name: values.astype(np.float64) for name, values in columns.items()},
        ids,
        scores,
        [random.integers(1000, 50_000, 12).tolist() for _ in range(setup.prompts)],
        mask=_mask(setup, random, lengths),
        advantages=judged if setup.rewards.given else None,
        finished=finished,
    )


def _groups(setup: Setup, random: Random) -> I64:
    sizes = np.full(setup.prompts, setup.group)
    if setup.uneven:
        sizes = sizes - random.integers(0, setup.group // 2, setup.prompts)
    return np.repeat(np.arange(setup.prompts), sizes)


def _lengths(setup: Setup, random: Random, count: int) -> tuple[I64, np.ndarray]:
    text = setup.text
    drawn = np.exp(random.normal(np.log(text.length), text.spread, count)).round().astype(int)
    drawn = np.maximum(drawn, text.shortest)
    return np.minimum(drawn, text.longest), drawn <= text.longest


def _columns(
    setup: Setup,
    random: Random,
    logits: F32,
    served: F32,
    words: I64,
    allowed: object,
    judged: F64,
) -> dict[str, F32]:
    sampling, moves, dump = setup.sampling, setup.moves, setup.dump
    hot = sampling.temperature if sampling.trainer is None else sampling.trainer
    cold = sampling.temperature if sampling.engine is None else sampling.engine
    over = allowed if sampling.trainer_kept else None

    def trained(weights: F32, warm: float = hot) -> F32:
        return taken(scored(random, weights, setup.trainer), words, warm, over)

    old = logits if not moves.stale else updated(random, logits, moves.stale)
    new = old
    if moves.update or moves.rate:
        sharper = 0.3 * moves.update * random.normal()
        new = updated(random, old, moves.update, sharper)
        new = learned(new, words, judged, moves.rate) if moves.rate else new
    current = hot if sampling.current is None else sampling.current
    found = {"log_probs_new": trained(new, current)}
    if dump.old:
        found["log_probs_old"] = found["log_probs_new"] if moves.same_pass else trained(old)
    if dump.ref:
        sharper = -moves.sharper * (1.0 + 0.3 * random.normal())
        found["log_probs_ref"] = trained(updated(random, new, moves.reference, sharper))
    if dump.rollout:
        found["log_probs_rollout"] = taken(served, words, cold, allowed)
    if dump.entropies:
        found["entropies"] = entropy(new, hot)
    return found


def _mask(setup: Setup, random: Random, lengths: I64) -> I64 | None:
    """Tool answers between the model's turns are masked."""
    if setup.text.turns < 2:
        return None
    mask = np.ones(int(lengths.sum()), dtype=int)
    for start, length in zip(np.cumsum(lengths) - lengths, lengths, strict=True):
        for turn in range(1, setup.text.turns):
            at = start + int(length * turn / setup.text.turns)
            count = int(random.integers(3, max(4, length // (2 * setup.text.turns))))
            mask[at : min(at + count, start + length - 2)] = 0
    return mask


# ---- records -------------------------------------------------------------------------------------


def records(batch: Batch, dump: Dump, random: np.random.Generator, name: str) -> list[Record]:
    """The records of a batch; ``name`` begins their ids."""
    rows = np.arange(len(batch.lengths))
    if dump.layout == "record":
        parts = [rows]
    elif dump.layout == "group":
        parts = [rows[batch.groups == group] for group in np.unique(batch.groups)]
    elif dump.layout == "rows":
        parts = [rows[at : at + 1] for at in rows]
    else:
        random.shuffle(rows)
        parts = [rows[at : at + dump.micro] for at in range(0, len(rows), dump.micro)]
    return [_record(batch, dump, part, f"{name}/{at}") for at, part in enumerate(parts)]


def _record(batch: Batch, dump: Dump, part: np.ndarray, name: str) -> Record:
    keys = KEYS[dump.words]
    made: Record = {"id": name, **batch.extra}
    padded = bool(dump.padding)
    for column, values in batch.columns.items():
        made[keys.get(column, column)] = _laid(batch, values, part, dump, 0.0)
    if dump.ids:
        made[keys.get("token_ids", "token_ids")] = _laid(batch, batch.ids, part, dump, PAD)
    if dump.strings:
        made["tokens"] = _strings(_laid(batch, batch.ids, part, dump, PAD))
    if batch.mask is not None or padded:
        ones = np.ones(int(batch.lengths.sum()), dtype=int)
        mask = ones if batch.mask is None else batch.mask
        made[keys.get("mask", "mask")] = _laid(batch, mask, part, dump, 0)
    _judged(made, batch, dump, part)
    return made


def _judged(made: Record, batch: Batch, dump: Dump, part: np.ndarray) -> None:
    if not batch.extra.get("unrewarded"):
        made["rewards"] = batch.rewards[part].tolist()
    made.pop("unrewarded", None)
    if batch.advantages is not None:
        made["advantages"] = batch.advantages[part].tolist()
    if dump.layout != "group" and len(np.unique(batch.groups)) > 1:
        groups = [f"q{group}" for group in batch.groups[part]]
        made["uid" if dump.words == "verl" or dump.layout == "rows" else "group_ids"] = groups
    if dump.layout == "rows":
        made["uid"] = f"q{batch.groups[part[0]]}"


def _laid(batch: Batch, values: np.ndarray, part: np.ndarray, dump: Dump, pad: Any) -> list[Any]:
    spans = list(batch.spans())
    rows = [values[spans[at]].tolist() for at in part]
    if not dump.padding:
        return rows
    width = max(map(len, rows)) + 3
    filled = [[pad] * (width - len(row)) for row in rows]
    if dump.padding == "left":
        return [more + row for row, more in zip(rows, filled, strict=True)]
    return [row + more for row, more in zip(rows, filled, strict=True)]


def _strings(rows: list[list[int]]) -> list[list[str]]:
    names = {END: "<|im_end|>", PAD: "<|endoftext|>"}
    return [[names.get(word, f"w{word}") for word in row] for row in rows]
