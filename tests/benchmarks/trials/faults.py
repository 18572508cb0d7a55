"""A planted fault: how it comes about, how strong, and what it takes to have named it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trials.kinds import NAMES, finish, precise
from trials.product import Record, table
from trials.simulate.batches import PAD, Batch, advantages, records, simulate, summed
from trials.simulate.policies import F64, Random, Rewards, Sampling  # noqa: F401 - in expressions

Strength = Any


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong: a row of ``faults.json``, and what makes it.

    Attributes:
        name: what it is called in the report.
        strengths: how strong; from ``sure`` on it has to be found.
        kinds: the clean kinds that it is planted into, one after the other.
        named: a regular expression on ``code: message`` of a finding that names it.
        about: how it comes about.
        change: makes it by changing the run, as an expression of ``setup`` and ``strength``.
        edit: makes it by changing what came of the run, of ``batch``, ``strength`` and ``random``.
        sure: the strengths that count for the rate; the others are told of, but not counted.
        any_severity: whether a finding that only informs is enough (behaviour, not a fault).
        dump: changes of the dump: columns, layout, padding.
    """

    name: str
    strengths: tuple[Strength, ...]
    kinds: tuple[str, ...]
    named: str
    about: str = ""
    change: str = "setup"
    edit: str = "batch"
    sure: tuple[Strength, ...] | None = None
    any_severity: bool = False
    dump: dict[str, Any] | None = None

    def counted(self, strength: Strength) -> bool:
        return self.sure is None or strength in self.sure


def planted(fault: Fault, strength: Strength, kind: str, random: Random) -> list[Record]:
    """The records of a batch of the kind, with the fault."""
    setup = precise(NAMES[kind].drawn(random), random)
    setup = replace(setup, dump=replace(setup.dump, **(fault.dump or {})))
    setup = eval(fault.change, globals() | {"setup": setup, "strength": strength})
    batch = finish(simulate(setup, random), setup)
    given = {"batch": batch.copy(), "strength": strength, "random": random}
    edited = eval(fault.edit, globals() | given)
    return records(edited, setup.dump, random, f"{fault.name}/{strength}/{kind}")


# ---- columns that are filled, foreign, random, displaced, not log-probs at all -------------------


def _old(batch: Batch) -> F64:
    return batch.columns["log_probs_old"]


def filled(batch: Batch, strength: tuple[float, float], random: Random) -> Batch:
    """A share of log_probs_old has a filler: missing log-probs became 0.0, −100 or −9999."""
    share, filler = strength
    _old(batch)[random.random(len(batch.ids)) < share] = filler
    return batch


def foreign(batch: Batch, strength: float, random: Random) -> Batch:
    """log_probs_old of other responses (the batch was reordered, the column was not)."""
    mixed = batch.copy()
    rows = np.flatnonzero(random.random(len(batch.lengths)) < strength)
    spans = list(batch.spans())
    for row, other in zip(rows, np.roll(rows, 1), strict=True):
        source = _old(batch)[spans[other]]
        count = int(batch.lengths[row])
        _old(mixed)[spans[row]] = np.resize(source, count) if len(source) else 0.0
    return mixed


def unrelated(batch: Batch, strength: str, random: Random) -> Batch:
    """log_probs_old of an untrained head, or uniform noise: unrelated to new."""
    count = len(batch.ids)
    noise = -random.gamma(2.0, 0.5, count) if strength == "like" else -5.26 * random.random(count)
    batch.columns["log_probs_old"] = np.asarray(noise)
    return batch


def rollout_filled(batch: Batch, strength: float, random: Random) -> Batch:
    hit = random.random(len(batch.ids)) < strength
    batch.columns["log_probs_rollout"][hit] = 0.0
    return batch


def displaced(batch: Batch, strength: tuple[str, int, float], random: Random) -> Batch:
    """A column one token early or late, in a share of the responses."""
    column, lag, share = strength
    values = batch.columns[column]
    for span in batch.spans():
        if random.random() < share:
            values[span] = np.roll(values[span], lag)
    return batch


def probabilities(batch: Batch, strength: str, random: Random) -> Batch:
    for name, values in batch.columns.items():
        if name != "entropies":
            batch.columns[name] = np.exp(values) if strength == "p" else -values
    return batch


def negative(batch: Batch, strength: float, random: Random) -> Batch:
    """Entropies below 0, as where a filler of 1.0 was taken for a log-prob (trl#6121)."""
    hit = random.random(len(batch.ids)) < strength
    batch.columns["entropies"][hit] = -1.0
    return batch


# ---- the two engines: temperature, truncation, bias, drift, outliers -----------------------------


def _trained(batch: Batch) -> F64:
    return batch.columns.get("log_probs_old", batch.columns["log_probs_new"])


def _shifted_by(batch: Batch, change: F64) -> Batch:
    """The engine's log-probs moved; a sure word can hardly move, so by 1 − p."""
    trained = _trained(batch)
    moved = batch.columns["log_probs_rollout"] + change * (1.0 - np.exp(trained))
    batch.columns["log_probs_rollout"] = np.minimum(moved, 0.0)
    return batch


def bias(batch: Batch, strength: float, random: Random) -> Batch:
    """Every log-prob of the engine is too high: a normaliser that lacks part of the words."""
    return _shifted_by(batch, np.full(len(batch.ids), strength))


def one_sided(batch: Batch, strength: float, random: Random) -> Batch:
    """Errors of one sign only, at some tokens: a penalty on words that occurred already."""
    hit = random.random(len(batch.ids)) < 0.3
    return _shifted_by(batch, np.where(hit, -strength * random.random(len(batch.ids)), 0.0))


def drift(batch: Batch, strength: float, random: Random) -> Batch:
    """Positions are off (left padding without position_ids): the error grows with the place."""
    share = batch.places / 200.0
    return _shifted_by(batch, strength * share * random.normal(size=len(batch.ids)))


def outliers(batch: Batch, strength: int, random: Random) -> Batch:
    """A few tokens that the engines see quite differently."""
    at = random.choice(len(batch.ids), strength, replace=False)
    batch.columns["log_probs_rollout"][at] -= random.uniform(4.0, 9.0, strength)
    return batch


def last_foreign(batch: Batch, strength: float, random: Random) -> Batch:
    """The label of each packed sequence's last token is the next one's first (verl#6564)."""
    rows = random.random(len(batch.lengths)) < strength
    ends = batch.ends[rows] - 1
    foreign = -random.gamma(16.0, 0.75, len(ends))
    for name in ("log_probs_new", "log_probs_old"):
        if name in batch.columns:
            batch.columns[name][ends] = foreign
    return batch


def base(batch: Batch, strength: tuple[str, float], random: Random) -> Batch:
    column, base = strength
    batch.columns[column] = batch.columns[column] / np.log(base)
    return batch


# ---- rewards and rows: unequal scales, dead groups, copies ---------------------------------------


def dominated(batch: Batch, strength: float, random: Random) -> Batch:
    """One reward function is on another scale: the others no longer matter."""
    scores = batch.rewards.copy()
    scores[:, 2] *= strength
    return replace(batch, rewards=scores)


def dead(batch: Batch, strength: float, random: Random) -> Batch:
    """All responses to a prompt are right: no signal (behaviour, told as information)."""
    scores = batch.rewards.copy()
    for group in np.unique(batch.groups):
        if random.random() < strength or group == 0:
            scores[batch.groups == group] = 1.0
    return replace(batch, rewards=scores)


def copied(batch: Batch, strength: int, random: Random) -> Batch:
    """The last rows of the batch are its first (padding to a multiple of the workers)."""
    spans = list(batch.spans())[:strength]
    columns = {
        name: np.concatenate([values, *(values[span] for span in spans)])
        for name, values in batch.columns.items()
    }
    return replace(
        batch,
        columns=columns,
        ids=np.concatenate([batch.ids, *(batch.ids[span] for span in spans)]),
        lengths=np.concatenate([batch.lengths, batch.lengths[:strength]]),
        groups=np.concatenate([batch.groups, batch.groups[:strength]]),
        rewards=np.concatenate([batch.rewards, batch.rewards[:strength]]),
    )


# ---- given advantages, next to the rewards that they come from -----------------------------------


def _standard(batch: Batch) -> F64:
    assert batch.advantages is not None
    return batch.advantages


def order(batch: Batch, strength: float, random: Random) -> Batch:
    """A share of the rows has another row's advantage: rewards were shuffled, or came back late."""
    mixed = _standard(batch).copy()
    rows = np.flatnonzero(random.random(len(mixed)) < strength)
    mixed[rows] = mixed[np.roll(rows, 1)]
    return replace(batch, advantages=mixed)


def stride(batch: Batch, strength: str, random: Random) -> Batch:
    """Groups taken by position, and wrongly.

    "interleaved": the rows are sample-major, the trainer reshapes as if prompt-major.
    "partial": a rollout of the first group failed, so the fixed stride runs over the edge of every
    group after it, and the rows past the last stride keep r/eps (AReaL#1419).
    """
    size = int((batch.groups == 0).sum())
    scores = summed(batch.rewards)
    count = len(scores)
    if strength == "interleaved":
        wrong = np.arange(count) % (count // size)
        return replace(batch, advantages=advantages(scores, wrong, "group-std", 1e-6))
    wrong = np.arange(count) // (size + 1)
    found = advantages(scores, wrong, "group-std", 1e-5)
    rest = np.arange(count) >= (count // (size + 1)) * (size + 1)
    found[rest] = scores[rest] / 1e-5
    return replace(batch, advantages=found)


def left_out(batch: Batch, strength: str, random: Random) -> Batch:
    """Leave-one-out mean and std: the std of the others is 0 where one is right (NeMo-RL#1518)."""
    scores = summed(batch.rewards)
    first = np.flatnonzero(batch.groups == 0)
    scores[first] = 0.0
    scores[first[int(random.integers(len(first)))]] = 1.0
    found = np.zeros(len(scores))
    for row, group in enumerate(batch.groups):
        others = scores[(batch.groups == group) & (np.arange(len(scores)) != row)]
        spread = float(others.std(ddof=1))
        found[row] = (scores[row] - others.mean()) / (spread + 1e-6)
    return replace(batch, rewards=scores, advantages=found)


# ---- tokens: padding, prompts, ends of text, retokenised and repeated text -----------------------


def padded(batch: Batch, strength: tuple[int, str], random: Random) -> Batch:
    """Right padding that counts: about so many tokens a response, the longest has none.

    "zeros": every column is 0.0 there, as trainers fill. "scored": the model scored the pads, and
    only their repeated id tells.
    """
    most, how = strength
    more = random.integers(0, 2 * most + 1, len(batch.lengths))
    more[int(np.argmax(batch.lengths))] = 0
    count = int(more.sum())
    fill = dict.fromkeys(batch.columns, 0.0)
    if how == "scored":
        shared = -random.gamma(1.5, 0.3, count)
        fill = {name: np.minimum(shared + random.normal(0, 0.02, count), 0.0) for name in fill}
    return batch.lengthened(more, {**fill, "ids": PAD})


def one_pad(batch: Batch, strength: str, random: Random) -> Batch:
    """The mask ends one token late in every finished response: one pad counts."""
    more = batch.finished.astype(int)
    count = int(more.sum())
    fill = dict.fromkeys(batch.columns, 0.0)
    if strength == "scored":
        fill = {name: -random.gamma(9.0, 1.0, count) for name in fill}
    return batch.lengthened(more, {**fill, "ids": PAD})


def end_masked(batch: Batch, strength: float, random: Random) -> Batch:
    """The mask was made from token ids, and the end of text has the id of padding (trl#4970)."""
    mask = np.ones(len(batch.ids), dtype=int) if batch.mask is None else batch.mask
    rows = batch.finished & (random.random(len(batch.lengths)) < strength)
    mask[batch.ends[rows] - 1] = 0
    return replace(batch, mask=mask)


def prompted(batch: Batch, strength: str, random: Random) -> Batch:
    """Every response begins with its prompt. "ids": with prompt_ids; "bare": log-probs alone."""
    count = len(batch.prompts[0])
    starts = np.repeat(batch.starts, count)
    scores = [-random.gamma(1.0, 1.5, count) for _ in batch.prompts]
    shared = np.concatenate([scores[group] for group in batch.groups])
    columns = {
        name: np.insert(values, starts, np.minimum(shared + random.normal(0, 1e-3, len(shared)), 0))
        for name, values in batch.columns.items()
    }
    ids = np.insert(batch.ids, starts, np.concatenate([batch.prompts[g] for g in batch.groups]))
    mask = None if batch.mask is None else np.insert(batch.mask, starts, 1)
    extra = dict(batch.extra)
    if strength == "ids":
        extra["prompt_ids"] = [batch.prompts[group] for group in batch.groups]
    return replace(
        batch, lengths=batch.lengths + count, columns=columns, ids=ids, mask=mask, extra=extra
    )


def retokenised(batch: Batch, strength: float, random: Random) -> Batch:
    """Decoded and encoded again, two tokens became one (trl#5224).

    From there on the engine's log-probs are those of the token before; the ids that it sampled
    are in the dump as sampled_token_ids.
    """
    sampled = batch.split(batch.ids)
    rollout = batch.columns["log_probs_rollout"]
    for row, span in enumerate(batch.spans()):
        size = span.stop - span.start
        if random.random() < strength and size > 12:
            at = int(random.integers(3, size // 2))
            merged = sampled[row][at]
            sampled[row] = [*sampled[row][:at], merged + 1, merged + 2, *sampled[row][at + 1 :]]
            tail = rollout[span][at:-1].copy()
            rollout[span.start + at + 1 : span.stop] = tail
    batch.extra["sampled_token_ids"] = sampled
    return batch


FAULTS = [Fault(**row) for row in table(__file__, "faults.json")]
