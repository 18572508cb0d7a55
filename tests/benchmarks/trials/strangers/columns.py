"""Dumps with a wrong column, made as the thread of each fault tells it (``faults.py``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trials.product import Record
from trials.simulate.batch import END, PAD
from trials.simulate.noise import bfloat16
from trials.simulate.policy import Random
from trials.strangers.dumps import healthy, key, lengthened, made, rowwise


def _rolled(by: int) -> Callable[[list[Any], int], Any]:
    return lambda row, at: row[by:] + row[:by]


def old_shifted(random: Random, by: int) -> list[Record]:
    found = made(random, healthy(random, dump={"padding": ""})).written()
    rowwise(found, "log_probs_old", _rolled(by))
    return found


def leading_zero(random: Random, _: Any) -> list[Record]:
    """The engine's column begins with a 0 for the prompt's last token, and loses its last."""
    found = made(random, healthy(random, dump={"padding": ""})).written()
    rowwise(found, "log_probs_rollout", lambda row, at: [0.0, *row[:-1]])
    return found


def raw_temperature(random: Random, temperature: float) -> list[Record]:
    """Sampled and trained at T, but the engine gives the log-probs of T = 1."""
    return made(
        random, healthy(random, sampling={"temperature": temperature, "engine": 1.0})
    ).written()


def divided(random: Random, temperature: float) -> list[Record]:
    """The engine's log-probs (of T = 1) divided by T, where the logits should have been."""
    setup = healthy(random, sampling={"temperature": temperature, "engine": 1.0})
    found = made(random, setup).written()
    rowwise(found, "log_probs_rollout", lambda row, at: [x / temperature for x in row])
    return found


def truncated(random: Random, kept: tuple[str, float]) -> list[Record]:
    return made(
        random, healthy(random, sampling={kept[0]: kept[1], "trainer_kept": False})
    ).written()


def filler(random: Random, what: str) -> list[Record]:
    """Rows filled up behind the end of text, with ids of ``what``, and all of it counted."""
    run = made(random, healthy(random, dump={"padding": "", "layout": "record"}))
    longest = int(run.batch.lengths.max())
    more = np.minimum(longest - run.batch.lengths, 40)
    total = int(more.sum())
    plausible = -np.exp(random.normal(-2.0, 1.2, total))
    fill = {
        "ids": END if what == "end" else PAD,
        "mask": 1,
        **{
            name: (plausible + 0.02 * random.standard_normal(total)).clip(max=0.0)
            for name in run.batch.columns
        },
    }
    return lengthened(run, more, fill).written()


def end_masked(random: Random, share: float) -> list[Record]:
    """Finished responses whose end of text the mask leaves out."""
    run = made(random, healthy(random, dump={"padding": "right", "ids": True}))
    mask = np.ones(int(run.batch.lengths.sum()), dtype=int)
    ends = run.batch.ends[run.batch.finished] - 1
    mask[ends[random.random(len(ends)) < share]] = 0
    run.batch.mask = mask
    return run.written()


def end_dropped(random: Random, share: float) -> list[Record]:
    """Ends of text are filtered from ids and log-probs."""
    found = made(random, healthy(random, dump={"padding": ""})).written()
    names = [name for name in found[0] if isinstance(found[0][name], list)]
    for record in found:
        ids = record[key(record, "ids")]
        for row, values in enumerate(ids):
            if values[-1] != END or random.random() > share:
                continue
            for name in names:
                column = record[name]
                if isinstance(column[0], list) and len(column[row]) == len(values):
                    column[row] = column[row][:-1]
    return found


def prompt_in(random: Random, share: float) -> list[Record]:
    """Responses that begin with the prompt's tokens, counted; the engine did not sample those."""
    run = made(random, healthy(random, dump={"padding": "", "layout": "record"}))
    found = run.written()
    record = found[0]
    hit = random.random(len(run.batch.lengths)) < share
    hit[int(random.integers(len(hit)))] = True
    for row in np.flatnonzero(hit):
        prompt = run.batch.prompts[run.batch.groups[row]]
        strange = (-np.exp(random.normal(1.0, 0.7, len(prompt)))).tolist()
        for name in ("log_probs_new", "log_probs_old", "log_probs_rollout", "ids"):
            column = record.get(key(record, name))
            if column is None:
                continue
            if name == "ids":
                before: list[Any] = list(prompt)
            elif name == "log_probs_rollout":
                before = [0.0] * len(prompt)
            else:
                before = [x + 0.02 * random.standard_normal() for x in strange]
            column[row] = before + column[row]
    return found


def zero_tail(random: Random, share: float) -> list[Record]:
    """The engine's column is shorter than the tokens and is filled up with zeros."""
    found = made(random, healthy(random, dump={"padding": ""})).written()

    def cut(row: list[float], at: int) -> list[float]:
        if random.random() > 0.5:
            return row
        kept = int(len(row) * (1.0 - share))
        return row[:kept] + [0.0] * (len(row) - kept)

    rowwise(found, "log_probs_rollout", cut)
    return found


def zeros(random: Random, name: str) -> list[Record]:
    found = made(random, healthy(random, dump={"padding": ""})).written()
    rowwise(found, name, lambda row, at: [0.0] * len(row))
    return found


def tools(random: Random, how: str) -> list[Record]:
    """Tool answers have zeros from the engine; the mask counts them, or is inverted or late."""
    run = made(random, healthy(random, text={"turns": 3, "length": 120.0}))
    batch = run.batch
    assert batch.mask is not None
    outside = batch.mask == 0
    for name, values in batch.columns.items():
        if name == "log_probs_rollout":
            values[outside] = 0.0
        else:
            values[outside] = -np.exp(random.normal(0.8, 0.8, int(outside.sum())))
    if "log_probs_old" in batch.columns:
        batch.columns["log_probs_old"][outside] = batch.columns["log_probs_new"][outside]
    if how == "counted":
        batch.mask = np.ones_like(batch.mask)
    elif how == "inverted":
        batch.mask = 1 - batch.mask
    else:
        batch.mask = np.concatenate([[1], batch.mask[:-1]])
    return run.written()


def retokenised(random: Random, share: float) -> list[Record]:
    """Some turns were decoded and encoded again: the trainer scores other tokens, later shifted."""
    run = made(random, healthy(random, dump={"padding": "", "ids": False}))
    batch = run.batch
    for span in batch.spans():
        if random.random() > share:
            continue
        start = span.start + int((span.stop - span.start) * random.uniform(0.2, 0.7))
        count = span.stop - start
        for name in ("log_probs_new", "log_probs_old"):
            if name in batch.columns:
                values = batch.columns[name]
                merged = -np.exp(random.normal(1.2, 0.6))
                later = np.append(values[start + 2 : span.stop], values[span.stop - 1])
                values[start : span.stop] = np.concatenate([[merged], later])[:count]
    return run.written()


def rows_mixed(random: Random, share: float) -> list[Record]:
    """Old log-probs of other responses: a reordered batch was not put back in order."""
    setup = healthy(random, text={"spread": 0.0, "longest": 90, "length": 90.0})
    run = made(random, setup)
    batch = run.batch
    old = batch.columns["log_probs_old"].copy()
    spans = list(batch.spans())
    rows = np.flatnonzero(random.random(len(spans)) < share)
    if len(rows) < 2:
        rows = np.arange(2)
    for row, other in zip(rows, np.roll(rows, 1), strict=True):
        a, b = spans[row], spans[other]
        count = min(a.stop - a.start, b.stop - b.start)
        batch.columns["log_probs_old"][a.start : a.start + count] = old[b.start : b.start + count]
    return run.written()


def advantages(random: Random, how: str) -> list[Record]:
    """Advantages next to their rewards, wrong in one of the ways of the threads."""
    kind = "continuous" if how != "exploded" else "binary"
    run = made(
        random, healthy(random, rewards={"kind": kind, "given": "group-std"}, group=8, prompts=4)
    )
    batch = run.batch
    rewards = batch.rewards
    assert batch.advantages is not None
    right = batch.advantages.copy()
    if how == "raw":
        batch.advantages = rewards.copy()
    elif how == "offset":
        batch.advantages = right + 0.35
    elif how == "small offset":
        batch.advantages = right + 0.1
    elif how == "swapped":
        batch.advantages = random.permutation(right)
    elif how == "negated":
        batch.advantages = -right
    elif how == "exploded":
        for group in np.unique(batch.groups):
            own = batch.groups == group
            batch.rewards[own] = 0.0
            batch.rewards[np.flatnonzero(own)[0]] = 1.0
        batch.advantages = np.where(batch.rewards > 0, 1e6, -1.0 / 7.0 / 0.378)
    else:
        batch.advantages = np.roll(right, 1)
    return run.written()


def reference_equal(random: Random, _: Any) -> list[Record]:
    """The reference is the policy itself, in every step, while the policy moves."""
    setup = healthy(
        random,
        dump={"ref": True, "layout": "record"},
        moves={"update": 0.1, "same_pass": False},
    )
    found = []
    for step in range(3):
        run = made(random, setup)
        run.batch.columns["log_probs_ref"] = run.batch.columns["log_probs_new"].copy()
        found += [{**record, "step": step} for record in run.written(f"step-{step}")]
    return found


def duplicated(random: Random, share: float) -> list[Record]:
    """Completions of a group that are the same text: one seed for all samples."""
    run = made(random, healthy(random, dump={"padding": "", "layout": "record"}))
    found = run.written()
    record = found[0]
    groups = run.batch.groups
    for row in range(1, len(groups)):
        first = int(np.flatnonzero(groups == groups[row])[0])
        if row == first or random.random() > share:
            continue
        for column in record.values():
            if isinstance(column, list) and len(column) == len(groups):
                column[row] = column[first]
    return found


def dead(random: Random, _: Any) -> list[Record]:
    return made(random, healthy(random, rewards={"kind": "solved"})).written()


def rounded(random: Random, name: str) -> list[Record]:
    found = made(random, healthy(random, dump={"padding": ""})).written()
    rowwise(found, name, lambda row, at: bfloat16(np.array(row, np.float32)).tolist())
    return found


def sentinel(random: Random, value: float) -> list[Record]:
    """Padding keeps the trainer's sentinel, and no mask leaves it out."""
    run = made(random, healthy(random, dump={"padding": "", "ids": False, "layout": "record"}))
    more = run.batch.lengths.max() - run.batch.lengths
    fill = {"ids": PAD, "mask": 1, **dict.fromkeys(run.batch.columns, value)}
    return lengthened(run, more, fill).written()


def unlikely(random: Random, _: Any) -> list[Record]:
    """Same-position logits: the token is scored by the logits that its own context gave next."""
    run = made(random, healthy(random))
    values = run.batch.columns["log_probs_old"]
    values[:] = -np.abs(random.normal(9.0, 3.5, len(values)))
    return run.written()


def shard(random: Random, _: Any) -> list[Record]:
    """A column normalised over the wrong count of shards: every log-prob is off by log TP."""
    found = made(random, healthy(random, dump={"padding": ""})).written()
    rowwise(found, "log_probs_old", lambda row, at: [x - np.log(4.0) for x in row])
    return found


def stale(random: Random, far: float) -> list[Record]:
    """The engine still samples with the weights of the beginning."""
    return made(random, healthy(random, moves={"stale": far})).written()


def lone_groups(random: Random, _: Any) -> list[Record]:
    """Every response carries a uid of its own."""
    run = made(random, healthy(random, dump={"layout": "rows", "words": "verl"}))
    found = run.written()
    for at, record in enumerate(found):
        record["uid"] = f"traj-{at}"
        record["prompt"] = f"question {run.batch.groups[at]}"
    return found


def long_mask(random: Random, _: Any) -> list[Record]:
    found = made(random, healthy(random, dump={"padding": "right", "layout": "record"})).written()
    mask = found[0][key(found[0], "mask")]
    mask[-1] = mask[-1] + [1, 1]
    return found


def broken(random: Random, value: float) -> list[Record]:
    found = made(random, healthy(random, dump={"padding": ""})).written()
    record = found[int(random.integers(len(found)))]
    column = record[key(record, "log_probs_old")]
    column[0][len(column[0]) // 2] = value
    record["not_finite"] = True
    return found
