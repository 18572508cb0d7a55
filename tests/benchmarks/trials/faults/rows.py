"""Faults of rewards, advantages, rows and tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trials.faults.fault import plant
from trials.simulate.batch import PAD, Batch
from trials.simulate.policy import F64, Random
from trials.simulate.rewards import advantages, summed
from trials.simulate.setup import Rewards, Setup

# ---- rewards and rows: unequal scales, dead groups, copies ---------------------------------------


def _functions(setup: Setup, strength: float) -> Setup:
    return replace(setup, rewards=Rewards(kind="functions"), prompts=4)


def _dominated(batch: Batch, strength: float, random: Random) -> Batch:
    """One reward function is on another scale: the others no longer matter."""
    scores = batch.rewards.copy()
    scores[:, 2] *= strength
    return replace(batch, rewards=scores)


def _dead(batch: Batch, strength: float, random: Random) -> Batch:
    """All responses to a prompt are right: no signal (behaviour, told as information)."""
    scores = batch.rewards.copy()
    for group in np.unique(batch.groups):
        if random.random() < strength or group == 0:
            scores[batch.groups == group] = 1.0
    return replace(batch, rewards=scores)


def _copied(batch: Batch, strength: int, random: Random) -> Batch:
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


GROUPS = {
    "reward functions on unequal scales": plant(
        (20.0, 100.0), ("functions",), change=_functions, edit=_dominated, any_severity=True
    ),
    "dead groups": plant(
        (0.5, 1.0), ("vllm", "tempered", "experts"), edit=_dead, any_severity=True
    ),
    "copies of rows": plant(
        (1, 4), ("vllm", "recomputed"), edit=_copied, dump={"layout": "record"}
    ),
}


# ---- given advantages, next to the rewards that they come from -----------------------------------


_GIVEN = ("mini-batches", "second-epoch", "shaped", "hook")
_WHOLE = {"layout": "record", "rollout": False}


def _live(setup: Setup, strength: object) -> Setup:
    """Rewards of a kind of which few groups are dead."""
    rewards = replace(setup.rewards, kind="continuous", written=True)
    return replace(setup, rewards=rewards, prompts=4)


def _standard(batch: Batch) -> F64:
    assert batch.advantages is not None
    return batch.advantages


def _sign(batch: Batch, strength: float, random: Random) -> Batch:
    return replace(batch, advantages=-_standard(batch))


def _centre(batch: Batch, strength: float, random: Random) -> Batch:
    """The baseline was not taken off: rewards are used, or all advantages are too high."""
    if strength == 0.0:
        return replace(batch, advantages=summed(batch.rewards))
    return replace(batch, advantages=_standard(batch) + strength)


def _order(batch: Batch, strength: float, random: Random) -> Batch:
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


def _scale(batch: Batch, strength: float, random: Random) -> Batch:
    return replace(batch, advantages=_standard(batch) * strength)


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


def _binary(setup: Setup, strength: object) -> Setup:
    rewards = Rewards(kind="binary", given="group-std", eps=1e-6)
    return replace(setup, rewards=rewards, prompts=4)


JUDGED = {
    "advantages of the other sign": plant((1.0,), _GIVEN, change=_live, edit=_sign, dump=_WHOLE),
    "advantages not centred": plant(
        (0.0, 0.3, 1.0), _GIVEN, change=_live, edit=_centre, dump=_WHOLE
    ),
    "advantages in another order": plant(
        (0.5, 1.0), _GIVEN, change=_live, edit=_order, dump=_WHOLE
    ),
    "groups by a wrong stride": plant(
        ("interleaved", "partial"), _GIVEN, change=_live, edit=stride, dump=_WHOLE
    ),
    "advantages on another scale": plant(
        (10.0, 100.0, 1e6), _GIVEN, change=_live, edit=_scale, sure=(100.0, 1e6), dump=_WHOLE
    ),
    "leave-one-out std of 0": plant(
        ("one right",), _GIVEN, change=_binary, edit=left_out, dump=_WHOLE
    ),
}


# ---- tokens: padding, prompts, ends of text, retokenised and repeated text -----------------------


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


_IDS = {"ids": True}

TOKENS = {
    "padding counted": plant(
        ((2, "zeros"), (8, "zeros"), (30, "zeros"), (8, "scored"), (30, "scored")),
        ("vllm", "second-epoch", "recomputed"),
        edit=_padded,
        dump={**_IDS, "padding": ""},
    ),
    "one pad counted": plant(
        ("zeros", "scored"),
        ("vllm", "recomputed"),
        edit=_one_pad,
        dump={**_IDS, "padding": "right"},
    ),
    "end of text masked": plant(
        (1.0,), ("vllm", "first-pass"), edit=_end_masked, dump={**_IDS, "padding": "right"}
    ),
    "prompt included": plant(
        ("ids", "no prompt_ids"),
        ("vllm", "second-epoch"),
        edit=_prompted,
        dump={**_IDS, "padding": ""},
    ),
    "prompt included, no ids": plant(
        ("bare",),
        ("vllm", "second-epoch", "functions"),
        edit=_prompted,
        dump={"ids": False, "padding": ""},
    ),
    "retokenised": plant(
        (0.25, 1.0), ("vllm", "recomputed"), edit=retokenised, dump={**_IDS, "padding": ""}
    ),
    "degenerate repetition": plant(
        ((30, 0.25), (50, 0.5)),
        ("vllm", "second-epoch"),
        change=_looping,
        any_severity=True,
        dump={**_IDS, "padding": ""},
    ),
}
