"""Faults of tokens: padding, prompts, ends of text, retokenised and repeated text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trials.faults.fault import Fault
from trials.simulate.batch import PAD, Batch
from trials.simulate.policy import Random
from trials.simulate.setup import Setup

_PADDING = r"\bpad(s|ded|ding)?\b"


def _padded(batch: Batch, strength: tuple[int, str], random: Random) -> Batch:
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


def _one_pad(batch: Batch, strength: str, random: Random) -> Batch:
    """The mask ends one token late in every finished response: one pad counts."""
    more = batch.finished.astype(int)
    count = int(more.sum())
    fill = dict.fromkeys(batch.columns, 0.0)
    if strength == "scored":
        fill = {name: -random.gamma(9.0, 1.0, count) for name in fill}
    return batch.lengthened(more, {**fill, "ids": PAD})


def _end_masked(batch: Batch, strength: float, random: Random) -> Batch:
    """The mask was made from token ids, and the end of text has the id of padding (trl#4970)."""
    mask = np.ones(len(batch.ids), dtype=int) if batch.mask is None else batch.mask
    rows = batch.finished & (random.random(len(batch.lengths)) < strength)
    mask[batch.ends[rows] - 1] = 0
    return replace(batch, mask=mask)


def _prompted(batch: Batch, strength: str, random: Random) -> Batch:
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


def _looping(setup: Setup, strength: tuple[int, float]) -> Setup:
    """A share of the responses ends in a phrase of three words, over and over, ever surer."""
    count, share = strength
    return replace(setup, text=replace(setup.text, repeats=count, looping=share, shortest=60))


RETOKENISED = r"retoken|token.?ids|sampled.*trained|trained.*sampled|from (token|position) \d+ on"
_IDS = {"ids": True}

TOKENS = (
    Fault(
        "padding counted",
        ((2, "zeros"), (8, "zeros"), (30, "zeros"), (8, "scored"), (30, "scored")),
        ("vllm", "second-epoch", "recomputed"),
        _PADDING,
        edit=_padded,
        dump={**_IDS, "padding": ""},
    ),
    Fault(
        "one pad counted",
        ("zeros", "scored"),
        ("vllm", "recomputed"),
        rf"{_PADDING}|after the end of text|end.of.text|eos",
        edit=_one_pad,
        dump={**_IDS, "padding": "right"},
    ),
    Fault(
        "end of text masked",
        (1.0,),
        ("vllm", "first-pass"),
        r"end.of.text|\beos\b|last token",
        edit=_end_masked,
        dump={**_IDS, "padding": "right"},
    ),
    Fault(
        "prompt included",
        ("ids", "no prompt_ids"),
        ("vllm", "second-epoch"),
        r"prompt",
        edit=_prompted,
        dump={**_IDS, "padding": ""},
    ),
    Fault(
        "prompt included, no ids",
        ("bare",),
        ("vllm", "second-epoch", "functions"),
        r"prompt",
        edit=_prompted,
        dump={"ids": False, "padding": ""},
    ),
    Fault(
        "retokenised",
        (0.25, 1.0),
        ("vllm", "recomputed"),
        RETOKENISED,
        edit=retokenised,
        dump={**_IDS, "padding": ""},
    ),
    Fault(
        "degenerate repetition",
        ((30, 0.25), (50, 0.5)),
        ("vllm", "second-epoch"),
        r"repet|loop|degenerat|repeats",
        _looping,
        any_severity=True,
        dump={**_IDS, "padding": ""},
    ),
)
