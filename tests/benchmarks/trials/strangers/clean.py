"""Batches that nothing is wrong with, of kinds that people have and that look odd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from trials.product import Record
from trials.simulate.noise import EXPERTS, FLOAT8, FLOAT32
from trials.simulate.policy import Random, Sharpness
from trials.strangers.dumps import Run, healthy, made, rowwise

Clean = Callable[[Random], list[Record]]


def _sharp(random: Random) -> list[Record]:
    """Late in training: nearly every token is sure, most log-probs are 0 in float32."""
    return made(
        random, healthy(random, sharpness=Sharpness(sure=0.93, sure_from=8.0, fork_to=5.0))
    ).written()


def _flat(random: Random) -> list[Record]:
    """An entropy bonus, or a base model on a hard task: forks everywhere."""
    return made(
        random, healthy(random, sharpness=Sharpness(sure=0.25, fork_from=0.5, fork_to=1.6))
    ).written()


def _sharpened(random: Random, by: float) -> list[Record]:
    """Many updates that sharpened (or flattened) the policy since the reference, unevenly."""
    return made(
        random,
        healthy(
            random,
            dump={"ref": True},
            moves={"reference": 0.35, "sharper": by, "update": 0.1, "same_pass": False},
        ),
    ).written()


def _adapter(random: Random) -> list[Record]:
    """LoRA on a tuned model: the reference is the bare base model, far away."""
    return made(
        random, healthy(random, dump={"ref": True}, moves={"reference": 1.1, "sharper": 0.15})
    ).written()


def _many_updates(random: Random) -> list[Record]:
    """The fourth epoch on one generation batch: ratios have spread."""
    return made(
        random,
        healthy(random, moves={"update": 0.3, "rate": 0.05, "same_pass": False}),
    ).written()


def _asynchronous(random: Random) -> list[Record]:
    """The engine is a few updates behind, as asynchronous trainers have it."""
    return made(random, healthy(random, moves={"stale": 0.12, "update": 0.05})).written()


def _experts(random: Random) -> list[Record]:
    """A mixture of experts: few tokens are routed otherwise in the engine."""
    return made(random, healthy(random, engine=EXPERTS, trainer=EXPERTS)).written()


def _eight_bits(random: Random) -> list[Record]:
    return made(random, healthy(random, engine=FLOAT8)).written()


def _exact(random: Random) -> list[Record]:
    """A deterministic float32 engine: rollout, old and new agree to the last digits."""
    return made(random, healthy(random, engine=FLOAT32, trainer=FLOAT32)).written()


def _short(random: Random) -> list[Record]:
    """Answers of a few tokens: a letter and the end of text."""
    return made(
        random,
        healthy(random, group=8, text={"length": 3.0, "spread": 0.4, "shortest": 2, "longest": 8}),
    ).written()


def _tails(random: Random) -> list[Record]:
    """Lengths over two orders of magnitude, some cut at the limit."""
    return made(
        random, healthy(random, text={"length": 40.0, "spread": 1.3, "shortest": 3, "longest": 700})
    ).written()


def _alone(random: Random) -> list[Record]:
    """One prompt, one group."""
    return made(random, healthy(random, prompts=1, group=8)).written()


def _curriculum(random: Random) -> list[Record]:
    """Most groups are all right or all wrong: the curriculum's stage is too easy or too hard."""
    run = made(random, healthy(random, rewards={"kind": "binary"}, prompts=8))
    for group in np.unique(run.batch.groups)[:-2]:
        run.batch.rewards[run.batch.groups == group] = float(random.integers(2))
    last = np.flatnonzero(run.batch.groups == run.batch.groups.max())
    run.batch.rewards[last] = np.arange(len(last)) % 2
    return run.written()


def _turns(random: Random) -> list[Record]:
    """An agent: answers of tools are masked, and the engine has no log-probs there."""
    run = made(random, healthy(random, text={"turns": 4, "length": 150.0}))
    outside = run.batch.mask == 0
    for name, values in run.batch.columns.items():
        if name == "log_probs_rollout":
            values[outside] = 0.0
        else:
            values[outside] = -np.exp(random.normal(0.8, 0.8, int(outside.sum())))
    return run.written()


def _code(random: Random) -> list[Record]:
    """Indentation, rules and closing brackets: runs of one token, some at the end."""
    return made(
        random,
        healthy(random, text={"runs": 4, "beginning": 6, "length": 130.0, "longest": 300}),
    ).written()


def _looping(random: Random) -> list[Record]:
    """Some responses fall into a loop until the limit; that is the model's doing."""
    return made(
        random,
        healthy(random, text={"looping": 0.15, "repeats": 30, "length": 110.0}),
    ).written()


def _small_vocabulary(random: Random) -> list[Record]:
    """Digits, protein letters: a vocabulary of thirty."""
    run = made(random, healthy(random))
    for span in run.batch.spans():
        own = run.batch.ids[span]
        run.batch.ids[span] = np.where(own > 100_000 * 1.2, own, 5 + own % 29)
    return run.written()


def _tempered(random: Random) -> list[Record]:
    """Sampled at 0.6 or 1.2, and every column at that temperature."""
    return made(
        random, healthy(random, sampling={"temperature": float(random.choice([0.6, 1.2]))})
    ).written()


def _functions(random: Random) -> list[Record]:
    """Three reward functions, one column each, no advantages."""
    return made(random, healthy(random, rewards={"kind": "functions"})).written()


def _given(random: Random) -> list[Record]:
    """Advantages next to rewards, in a convention of somebody's."""
    return made(
        random,
        healthy(
            random,
            rewards={
                "given": str(random.choice(["group-std", "group-mean"])),
                "eps": float(random.choice([1e-6, 1e-4, 1e-8])),
            },
        ),
    ).written()


def _micro(random: Random) -> list[Record]:
    """Micro-batches of shuffled rows with their advantages: groups are torn, as trainers do."""
    return made(
        random,
        healthy(
            random,
            dump={"layout": "micro", "micro": 4, "words": "trl"},
            rewards={"given": "group-std", "written": False},
        ),
    ).written()


def _left(random: Random) -> list[Record]:
    """Padded on the left, as a generation that continues has it."""
    return made(random, healthy(random, dump={"padding": "left"})).written()


def _masked_truncated(random: Random) -> list[Record]:
    """Overlong filtering: rows that were cut are masked as a whole."""
    run = made(random, healthy(random, text={"length": 90.0, "longest": 120}))
    mask = np.ones(int(run.batch.lengths.sum()), dtype=int)
    for row, span in enumerate(run.batch.spans()):
        if not run.batch.finished[row]:
            mask[span] = 0
    return replace(run, batch=replace(run.batch, mask=mask)).written()


def _plain_loop(random: Random) -> list[Record]:
    """A home-made loop that logs new and old alone, rounded to 4 digits."""
    setup = healthy(random, dump={"rollout": False, "ids": False, "words": "own", "padding": ""})
    found = made(random, setup).written()
    for name in ("log_probs_new", "log_probs_old"):
        rowwise(found, name, lambda row, at: [round(x, 4) for x in row])
    return found


def _first_step(random: Random) -> list[Record]:
    """The very first step: the policy is the reference, is the old policy."""
    run: Run = made(
        random, healthy(random, dump={"ref": True}, moves={"update": 0.0, "same_pass": True})
    )
    run.batch.columns["log_probs_ref"] = run.batch.columns["log_probs_new"].copy()
    return run.written()


def _long_beginning(random: Random) -> list[Record]:
    """Every response of a group begins with the same sure words (``<think>\\nOkay, so``)."""
    return made(random, healthy(random, text={"beginning": 12, "length": 110.0})).written()


CLEAN: dict[str, Clean] = {
    "sharp policy": _sharp,
    "flat policy": _flat,
    "sharpened by training": lambda random: _sharpened(random, 0.12),
    "flattened by an entropy bonus": lambda random: _sharpened(random, -0.12),
    "adapter on a far base model": _adapter,
    "many updates on one batch": _many_updates,
    "asynchronous engine": _asynchronous,
    "mixture of experts": _experts,
    "engine in 8 bits": _eight_bits,
    "exact engine": _exact,
    "short answers": _short,
    "long-tailed lengths": _tails,
    "one group": _alone,
    "curriculum of ties": _curriculum,
    "turns with tools": _turns,
    "code": _code,
    "loops": _looping,
    "small vocabulary": _small_vocabulary,
    "sampled and scored at a temperature": _tempered,
    "several reward functions": _functions,
    "advantages given": _given,
    "shuffled micro-batches": _micro,
    "padded left": _left,
    "truncated rows masked": _masked_truncated,
    "home-made loop, rounded": _plain_loop,
    "first step": _first_step,
    "shared beginning": _long_beginning,
}
