"""Real issue threads as samples: what each found, how that shows in a dump, and what names it.

``named`` in ``threads.csv`` is a regular expression on what ``check`` says (code and message, not
the advice) or ``verify`` (the causes).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from trials.faults.columns import last_foreign
from trials.faults.rows import left_out, retokenised, stride
from trials.kinds import NAMES
from trials.kinds.kind import finish
from trials.product import Record, rows
from trials.simulate import noise
from trials.simulate.batch import Batch
from trials.simulate.policy import Random
from trials.simulate.run import simulate
from trials.simulate.setup import Dump, Moves, Rewards, Sampling, Setup, Text
from trials.simulate.write import records
from trials.trl.data import data
from trials.trl.loss import evaluate, expected
from trials.trl.records import simulated


def _written(
    setup: Setup,
    random: Random,
    name: str,
    edit: Callable[[Batch], Batch] = lambda batch: batch,
) -> list[Record]:
    batch = edit(finish(simulate(setup, random), setup))
    return records(batch, setup.dump, random, name)


def verl_6280(random: Random) -> list[Record]:
    """https://github.com/verl-project/verl/issues/6280

    One epoch, one mini-batch, and still log_prob differs from old_log_prob: the two passes have
    micro-batches of other sizes, and bfloat16 kernels are not batch-invariant; mixtures of experts
    route differently besides. The policy did not move: the log ratios are noise of mean 0, and a
    tenth of the ratios leave [0.9, 1.1].
    """
    engine = noise.Engine(spread=0.09, routed=0.04, routed_spread=0.3)
    base = NAMES["recomputed"].setup
    setup = replace(base, trainer=engine, dump=replace(base.dump, rollout=False))
    return [{**one, "ppo_epochs": 1, "mini_batch": 0} for one in _written(setup, random, "verl")]


def unsloth_4502(random: Random) -> list[Record]:
    """https://github.com/unslothai/unsloth/issues/4502

    num_iterations is 1, but old and new log-probs differ and coef_1 is not 1: the pass without
    gradients has another kernel and precision than the one with them.
    """
    base = NAMES["first-pass"].setup
    trainer = noise.Engine(spread=0.05)
    setup = replace(base, trainer=trainer, moves=Moves(same_pass=False))
    return [{**one, "num_iterations": 1} for one in _written(setup, random, "unsloth")]


def verl_6564(random: Random) -> list[Record]:
    """https://github.com/verl-project/verl/pull/6564 (closes 6475)

    Next-token labels of a packed batch are rolled across samples, so the last token of a sequence
    gets the log-prob of the next one's first token, in the trainer's columns alone.
    """
    setup = NAMES["recomputed"].setup
    return _written(setup, random, "verl", lambda batch: last_foreign(batch, 1.0, random))


def verl_6240(random: Random) -> list[Record]:
    """https://github.com/verl-project/verl/issues/6240

    vLLM gives processed log-probs, after temperature and truncation; the trainer takes the raw
    logits over the whole vocabulary.
    """
    warm = float(random.choice([0.6, 0.7, 0.8]))
    sampling = Sampling(temperature=warm, top_p=0.9, top_k=20, trainer=1.0, trainer_kept=False)
    return _written(replace(NAMES["recomputed"].setup, sampling=sampling), random, "verl")


def unsloth_6738(random: Random) -> list[Record]:
    """https://github.com/unslothai/unsloth/pull/6738 (and unsloth-zoo 840)

    old comes from packed rows with positions of their own, which is right; new from a forward with
    left-padded prompts and no position_ids, whose rotations are off by the padding: the error
    grows with the length, up to some nats.
    """

    def edit(batch: Batch) -> Batch:
        pads = random.integers(0, 60, len(batch.lengths))[batch.rows] / 60.0
        size = 3.0 * pads * batch.places / 200.0
        new = batch.columns["log_probs_new"]
        moved = new + size * random.normal(size=len(new)) * (1.0 - np.exp(new))
        batch.columns["log_probs_new"] = np.minimum(moved, 0.0)
        return batch

    base = NAMES["first-pass"].setup
    setup = replace(
        base,
        moves=Moves(same_pass=False),
        text=Text(length=150),
        dump=replace(base.dump, padding="left"),
    )
    return _written(setup, random, "unsloth", edit)


def trl_6789(random: Random) -> list[Record]:
    """https://github.com/huggingface/trl/issues/6789

    vLLM normalises over the words that top-p kept, the trainer over all: the ratio is multiplied
    by the kept mass of each position, so its mean is below 1, and no error is upward.
    """
    top_p = float(random.choice([0.8, 0.9, 0.95]))
    sampling = Sampling(top_p=top_p, trainer_kept=False)
    return _written(replace(NAMES["vllm"].setup, sampling=sampling), random, "trl")


def trl_6121(random: Random) -> list[Record]:
    """https://github.com/huggingface/trl/pull/6121

    Padding is filled with INVALID_LOGPROB = 1.0, and the entropy is the mean of −log p over all
    positions: it becomes negative, which no entropy can be.
    """
    setup = replace(NAMES["first-pass"].setup, dump=Dump(padding="right", entropies=True))
    made = _written(setup, random, "trl")
    for one in made:
        mask = one.pop("mask")
        for name, fill in {"log_probs_new": 1.0, "log_probs_old": 1.0, "entropies": -1.0}.items():
            one[name] = [
                [value if counts else fill for value, counts in zip(*pair, strict=True)]
                for pair in zip(one[name], mask, strict=True)
            ]
    return made


def trl_5224(random: Random) -> list[Record]:
    """https://github.com/huggingface/trl/issues/5224

    Between the turns of an agent the text is decoded and encoded again; two tokens become one, so
    the ids that are trained are not those that were sampled, nor are their log-probs.
    """
    base = NAMES["tools"].setup
    setup = replace(base, dump=replace(base.dump, words="trl"))
    return _written(setup, random, "trl", lambda batch: retokenised(batch, 1.0, random))


def trl_6369(random: Random) -> list[Record]:
    """https://github.com/huggingface/trl/issues/6369

    mask_truncated_completions takes cut responses out of dapo's numerator; its denominator still
    counts their tokens.
    """
    while True:
        made = simulated(random, rewarded=False)
        seen = data(made)
        if made["framework"]["loss_type"] == "dapo" and not all(
            map(any, made.get("completion_mask", []))
        ):
            break
    kept = int(seen.kept.sum())
    cut = sum(len(row) - 3 for row in made["completion_mask"] if not any(row))
    steps = {"gradient_accumulation_steps": 1, "steps_per_generation": 1}
    made["hyperparameters"] |= {"num_items_in_batch": kept, **steps}
    right = evaluate(data(made))
    share = kept / (kept + max(cut, 1))
    made["expected"] = expected(seen, right[0] * share, right[1] * share)
    return [made]


def nemo_1518(random: Random) -> list[Record]:
    """https://github.com/NVIDIA-NeMo/RL/issues/1518

    Leave-one-out baseline with normalised rewards: where one response of a group is right, the
    others' std is 0 for it, and its advantage 10⁶.
    """
    setup = replace(NAMES["mini-batches"].setup, rewards=Rewards(given="group-std", eps=1e-6))
    return _written(setup, random, "nemo", lambda batch: left_out(batch, "", random))


def nemo_1330(random: Random) -> list[Record]:
    """https://github.com/NVIDIA-NeMo/RL/issues/1330

    A very high token_mult_prob_error on one kind of machine: the engines differ at all tokens,
    without a cause that the log-probs could tell.
    """
    return _written(replace(NAMES["vllm"].setup, engine=noise.Engine(spread=0.6)), random, "nemo")


def areal_1419(random: Random) -> list[Record]:
    """https://github.com/areal-project/AReaL/issues/1419

    A rollout failed, a group is short of one row, and the normalisation goes on in strides of the
    full size: it mixes groups, and leaves the last rows as r/eps.
    """
    rewards = Rewards(kind="continuous", given="group-std")
    setup = replace(NAMES["mini-batches"].setup, rewards=rewards)
    return _written(setup, random, "areal", lambda batch: stride(batch, "partial", random))


@dataclass(frozen=True)
class Thread:
    """A thread: where, what about, which command is asked, what names it, what is dumped."""

    name: str
    about: str
    command: str
    named: str
    made: Callable[[Random], list[Record]]


_MADE = {
    "verl#6280": verl_6280,
    "verl#6564": verl_6564,
    "verl#6240": verl_6240,
    "unsloth#6738": unsloth_6738,
    "unsloth#4502": unsloth_4502,
    "trl#6789": trl_6789,
    "trl#6121": trl_6121,
    "trl#5224": trl_5224,
    "trl#6369": trl_6369,
    "NeMo-RL#1518": nemo_1518,
    "NeMo-RL#1330": nemo_1330,
    "AReaL#1419": areal_1419,
}

THREADS = [Thread(**row, made=_MADE[row["name"]]) for row in rows(__file__, "threads.csv")]
