"""Kinds by what computed them: passes, epochs, temperatures, precision, staleness."""

from __future__ import annotations

from dataclasses import replace

from trials.kinds.kind import Kind
from trials.simulate import noise
from trials.simulate.policy import Random, Sharpness
from trials.simulate.setup import Dump, Moves, Rewards, Sampling, Setup, Text


def _warmth(setup: Setup, random: Random) -> Setup:
    warm = float(random.choice([0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3]))
    return replace(setup, sampling=replace(setup.sampling, temperature=warm))


def _nucleus(setup: Setup, random: Random) -> Setup:
    top_p = float(random.choice([0.8, 0.9, 0.95, 0.99]))
    warm = float(random.choice([0.7, 1.0]))
    return replace(setup, sampling=Sampling(temperature=warm, top_p=top_p))


_ROLLOUT = Dump(rollout=True, ids=True)
_LATER = Moves(update=0.08, same_pass=False)

ENGINES = (
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
)
