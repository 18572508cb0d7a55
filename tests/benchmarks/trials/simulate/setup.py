"""Everything that a simulated run has, as one value: kinds are such values, faults change them."""

from __future__ import annotations

from dataclasses import dataclass, field

from trials.simulate.noise import BFLOAT16, Engine
from trials.simulate.policy import Sharpness


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn, and over what either side normalises.

    Attributes:
        temperature, top_p, top_k: of the draw.
        engine, trainer: the temperature that either divides its logits by (None: the draw's).
        current: the same of log_probs_new alone (None: the trainer's).
        engine_kept, trainer_kept: whether either normalises over the words that were kept.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 10_000
    engine: float | None = None
    trainer: float | None = None
    current: float | None = None
    engine_kept: bool = True
    trainer_kept: bool = True

    @property
    def truncated(self) -> bool:
        return self.top_p < 1.0 or self.top_k < 10_000


@dataclass(frozen=True)
class Moves:
    """How far the policies are apart, as spreads of a random direction in logit space.

    Attributes:
        stale: from the weights that sampled to those of log_probs_old.
        update: from old to new, over all steps so far; 0 for the same weights.
        rate: of the steps on these very tokens (later epochs over one batch).
        reference: from the reference to new; ``sharper`` besides.
        same_pass: log_probs_new is log_probs_old to the last bit (one forward pass).
    """

    stale: float = 0.0
    update: float = 0.0
    rate: float = 0.0
    reference: float = 0.1
    sharper: float = 0.02
    same_pass: bool = True


@dataclass(frozen=True)
class Rewards:
    """What is rewarded, and the advantages.

    Attributes:
        kind: "binary", "continuous", "functions", "shaped" or "solved".
        given: the advantages in the dump: "", "group-std", "group-mean".
        eps: added to the std.
        written: whether the rewards are in the dump.
    """

    kind: str = "binary"
    given: str = ""
    eps: float = 1e-4
    written: bool = True


@dataclass(frozen=True)
class Text:
    """What the responses look like.

    Attributes:
        length, spread: median and log-spread of their lengths.
        shortest, longest: bounds; ``longest`` cuts a response, which then has no end of text.
        turns: of the model, between which a tool answers (its tokens are masked).
        beginning: tokens at the beginning that the responses of a group share, most of them sure.
        runs: stretches of one token in each response.
        repeats: tokens at the end of a response that repeat a phrase (a loop, not padding).
        looping: the share of responses that end so, and have no end of text.
    """

    length: float = 90.0
    spread: float = 0.5
    shortest: int = 6
    longest: int = 400
    turns: int = 1
    beginning: int = 0
    runs: int = 0
    repeats: int = 0
    looping: float = 0.0


@dataclass(frozen=True)
class Dump:
    """What is written, and how.

    Attributes:
        words: whose names the keys have: "own", "trl" or "verl".
        old, ref, rollout, entropies, ids, strings: which columns there are.
        layout: "record" (all groups in one), "group" (a record a group), "micro" (micro-batches
            of shuffled rows), "rows" (a record a response).
        micro: rows of a micro-batch.
        padding: "" (ragged), "right" or "left", with a mask.
    """

    words: str = "own"
    old: bool = True
    ref: bool = False
    rollout: bool = False
    entropies: bool = False
    ids: bool = False
    strings: bool = False
    layout: str = "record"
    micro: int = 4
    padding: str = ""


@dataclass(frozen=True)
class Setup:
    """A run: how many prompts and responses to each, and all of the above."""

    prompts: int = 2
    group: int = 8
    uneven: bool = False
    sharpness: Sharpness = field(default_factory=Sharpness)
    sampling: Sampling = field(default_factory=Sampling)
    engine: Engine = BFLOAT16
    trainer: Engine = BFLOAT16
    moves: Moves = field(default_factory=Moves)
    rewards: Rewards = field(default_factory=Rewards)
    text: Text = field(default_factory=Text)
    dump: Dump = field(default_factory=Dump)
