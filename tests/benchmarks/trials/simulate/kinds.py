"""The kinds of clean batches: what a healthy real trainer would dump.

Each is a setup and a sentence that says whose dump it resembles. ``check`` has nothing to warn of
in any of them. A batch whose own engines differ by more than the bound that frameworks publish
(a mean exp|d| of 1.05: NeMo-RL's docs/guides/dtensor-tp-accuracy.md) is no clean batch, whatever
its recipe, and is drawn again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from trials.product import Record
from trials.simulate import noise
from trials.simulate.batch import Batch
from trials.simulate.policy import Random, Sharpness
from trials.simulate.run import simulate
from trials.simulate.setup import Dump, Moves, Rewards, Sampling, Setup, Text
from trials.simulate.write import records

MOST = 1.045
"""Mean exp|old − rollout| beyond which a batch is drawn again."""


@dataclass(frozen=True)
class Kind:
    """A kind of clean batch; ``vary`` draws what differs from run to run (temperatures, …)."""

    name: str
    recipe: str
    setup: Setup
    vary: Callable[[Setup, Random], Setup] = lambda setup, random: setup


def clean(kind: Kind, random: Random) -> tuple[Batch, Setup]:
    """A batch of the kind, and the setup it came from."""
    while True:
        setup = precise(kind.vary(kind.setup, random), random)
        batch = finish(simulate(setup, random), setup)
        if _apart(batch) <= MOST:
            return batch, setup


def finish(batch: Batch, setup: Setup) -> Batch:
    """What a dump adds: the engine has no log-probs of a tool's tokens, rewards may be left out."""
    if batch.mask is not None and "log_probs_rollout" in batch.columns:
        batch.columns["log_probs_rollout"][batch.mask == 0] = 0.0
    if not setup.rewards.written:
        batch.extra["unrewarded"] = True
    return batch


def _apart(batch: Batch) -> float:
    columns = batch.columns
    if "log_probs_rollout" not in columns:
        return 1.0
    trained = columns.get("log_probs_old", columns["log_probs_new"])
    size = np.abs(trained - columns["log_probs_rollout"])
    counted = size if batch.mask is None else size[batch.mask == 1]
    return float(np.exp(counted).mean())


def dumped(kind: Kind, random: Random, name: str) -> list[Record]:
    """The records of a clean batch."""
    batch, setup = clean(kind, random)
    return records(batch, setup.dump, random, name)


def precise(setup: Setup, random: Random) -> Setup:
    """Engines differ in noise from model to model, by a factor of two either way."""
    factor = float(np.exp(random.uniform(-0.7, 0.7)))
    engine, trainer = (
        replace(one, spread=one.spread * factor) for one in (setup.engine, setup.trainer)
    )
    return replace(setup, engine=engine, trainer=trainer)


def _warmth(setup: Setup, random: Random) -> Setup:
    warm = float(random.choice([0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3]))
    return replace(setup, sampling=replace(setup.sampling, temperature=warm))


def _nucleus(setup: Setup, random: Random) -> Setup:
    top_p = float(random.choice([0.8, 0.9, 0.95, 0.99]))
    warm = float(random.choice([0.7, 1.0]))
    return replace(setup, sampling=Sampling(temperature=warm, top_p=top_p))


_ROLLOUT = Dump(rollout=True, ids=True)
_LATER = Moves(update=0.08, same_pass=False)

KINDS = (
    Kind(
        "first-pass",
        "TRL without vLLM: one forward pass, old is new to the last bit, no reference, binary "
        "rewards, padded on the right with a mask.",
        Setup(dump=Dump(words="trl", ids=True, padding="right")),
    ),
    Kind(
        "vllm",
        "TRL with vLLM in bfloat16: sampling_per_token_logps beside old = new.",
        Setup(dump=Dump(words="trl", rollout=True, ids=True, padding="right")),
    ),
    Kind(
        "recomputed",
        "verl on policy: old recomputed in another micro-batch than new, both bfloat16, so that "
        "the ratios are noise about 1 (no bit-exact trainer exists there).",
        Setup(
            trainer=noise.Engine(spread=0.02),
            moves=Moves(same_pass=False),
            dump=Dump(words="verl", rollout=True, ids=True, entropies=True),
        ),
    ),
    Kind(
        "mini-batches",
        "verl, the eighth of eight mini-batches: new is a few steps ahead of old, KL to a "
        "reference, rewards and uid, advantages per response.",
        Setup(
            prompts=4,
            moves=_LATER,
            rewards=Rewards(given="group-std", eps=1e-6),
            dump=Dump(words="verl", ref=True, rollout=True, ids=True),
        ),
    ),
    Kind(
        "second-epoch",
        "TRL with num_iterations 2: new was trained on these very tokens; some ratios clip.",
        Setup(
            moves=Moves(update=0.06, rate=0.15, same_pass=False),
            rewards=Rewards(given="group-std"),
            dump=Dump(words="trl", ref=True, ids=True, padding="right"),
        ),
    ),
    Kind(
        "tempered",
        "A sampling temperature of 0.6 to 1.3 that both engines divide their logits by.",
        Setup(moves=_LATER, dump=_ROLLOUT),
        _warmth,
    ),
    Kind(
        "nucleus",
        "top-p of 0.8 to 0.99, both sides normalised over the words that were kept (the sampling "
        "mask is replayed in the trainer).",
        Setup(sampling=Sampling(top_p=0.9), dump=_ROLLOUT),
        _nucleus,
    ),
    Kind(
        "float8",
        "Rollouts in fp8, trainer in bfloat16: noise of several times bfloat16's, mean 0.",
        Setup(engine=noise.FLOAT8, dump=_ROLLOUT),
    ),
    Kind(
        "experts",
        "A mixture of experts: in some tokens of a hundred the engines route differently, and "
        "differ by far more there than elsewhere (heavy tails).",
        Setup(engine=noise.EXPERTS, prompts=4, moves=Moves(same_pass=False), dump=_ROLLOUT),
    ),
    Kind(
        "stale",
        "Asynchronous: sampled by the weights of some steps ago (prime-rl, AReaL); old is the "
        "trainer's own at the start of the step.",
        Setup(moves=Moves(stale=0.08, update=0.03, same_pass=False), dump=_ROLLOUT),
    ),
    Kind(
        "tools",
        "Agents of four turns: the tool's tokens stand between the model's, are masked, and have "
        "no log-prob of the engine (0.0).",
        Setup(
            text=Text(length=160, turns=4, shortest=60),
            dump=Dump(words="verl", rollout=True, ids=True),
        ),
    ),
    Kind(
        "sure",
        "Long reasoning of low entropy after much training: nine of ten tokens are sure, a third "
        "of the log-probs exactly 0.0, a far reference.",
        Setup(
            group=4,
            sharpness=Sharpness(sure=0.93, sure_from=8.0, sure_to=60.0),
            text=Text(length=350, spread=0.3, longest=900),
            moves=Moves(update=0.05, reference=0.3, sharper=0.15, same_pass=False),
            dump=Dump(ref=True, rollout=True, ids=True),
        ),
    ),
    Kind(
        "capped",
        "Half of the responses are cut at the greatest length and have no end of text.",
        Setup(
            text=Text(length=100, spread=0.4, longest=100),
            dump=Dump(words="trl", rollout=True, ids=True, padding="right"),
        ),
    ),
    Kind(
        "many-groups",
        "Eight groups of unequal sizes in one record (failed rollouts are dropped), group_ids, "
        "rewards of a reward model.",
        Setup(
            prompts=8,
            uneven=True,
            rewards=Rewards(kind="continuous"),
            text=Text(length=50),
            dump=_ROLLOUT,
        ),
    ),
    Kind(
        "hook",
        "Micro-batches as a trainer's hook writes them: rows of all groups shuffled, a group torn "
        "over several records, advantages given, rewards beside them.",
        Setup(
            prompts=4,
            text=Text(length=50),
            rewards=Rewards(given="group-std"),
            dump=Dump(words="trl", ids=True, strings=True, layout="micro", padding="right"),
        ),
    ),
    Kind(
        "micro-of-one",
        "The same with one row a micro-batch, and no rewards: a policy loss sees none.",
        Setup(
            text=Text(length=70),
            moves=_LATER,
            rewards=Rewards(given="group-mean", written=False),
            dump=Dump(words="verl", layout="micro", micro=1),
        ),
    ),
    Kind(
        "rows",
        "A row a response, as prime-rl and NeMo-RL write them, with uid, advantage and reward.",
        Setup(
            rewards=Rewards(given="group-std", eps=1e-6),
            dump=Dump(layout="rows", rollout=True, ids=True),
        ),
    ),
    Kind(
        "functions",
        "Three reward functions (right, tidy, brief), one column each; a record a group.",
        Setup(
            prompts=3,
            rewards=Rewards(kind="functions"),
            moves=_LATER,
            dump=Dump(layout="group", ref=True),
        ),
    ),
    Kind(
        "short-answers",
        "Answers of one to six tokens (multiple choice): copies and one-token responses are "
        "natural, groups are often dead.",
        Setup(
            prompts=4,
            sharpness=Sharpness(sure=0.6),
            text=Text(length=2.5, spread=0.5, shortest=1, longest=6),
            dump=Dump(rollout=True, ids=True, strings=True),
        ),
    ),
    Kind(
        "small-model",
        "A model of characters near the uniform distribution, in float32, as people test with.",
        Setup(
            sharpness=Sharpness(sure=0.0, fork_from=0.05, fork_to=0.6),
            engine=noise.FLOAT32,
            trainer=noise.FLOAT32,
            moves=Moves(update=0.1, reference=0.3, same_pass=False),
            text=Text(length=25, longest=32),
            dump=Dump(words="trl", ref=True, ids=True, padding="right"),
        ),
    ),
    Kind(
        "shaped",
        "Rewards shaped by length, Dr. GRPO's advantages, left padding with a mask, entropies.",
        Setup(
            prompts=3,
            rewards=Rewards(kind="shaped", given="group-mean"),
            moves=_LATER,
            dump=Dump(entropies=True, rollout=True, padding="left", ids=True),
        ),
    ),
    Kind(
        "tables",
        "Code and tables: every response has stretches of one token (indentation, rules), now and "
        "then as the last thing before the end of text.",
        Setup(
            text=Text(length=150, shortest=40, runs=3),
            dump=Dump(words="trl", rollout=True, ids=True, padding="right"),
        ),
    ),
    Kind(
        "beginning",
        "Reasoning models begin alike: the responses of a group share their first dozen tokens, "
        "because the policy is sure of them, not because they are the prompt.",
        Setup(
            prompts=4, group=4, text=Text(beginning=14), moves=_LATER, dump=Dump(rollout=True)
        ),
    ),
    Kind(
        "solved",
        "A prompt set that the policy has learned: all groups are dead, all given advantages 0, "
        "only the KL acts.",
        Setup(
            moves=_LATER,
            rewards=Rewards(kind="solved", given="group-std"),
            dump=Dump(words="trl", ref=True, ids=True, layout="micro", padding="right"),
        ),
    ),
)
"""24 kinds."""

NAMES = {kind.name: kind for kind in KINDS}
