"""What a case is before the oracle has computed it, and the inputs that many of them share.

Every log-prob, reward and advantage is a multiple of 1/32 below 8 where nothing else is said: such
numbers are exact in bfloat16 too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

Columns = Mapping[str, Any]
Rows = Sequence[Sequence[float]]

TOKENS = {
    "new": "log_probs_new",
    "old": "log_probs_old",
    "ref": "log_probs_ref",
    "rollout": "log_probs_rollout",
    "entropies": "entropies",
}
PLAIN = {"surrogate": "clip", "aggregate": "token-mean", "epsilon_low": 0.2, "epsilon_high": 0.2}
ANY_MEAN = ("response-mean", "prompt-mean")
"""What token-mean equals when all responses are equally long, and all groups equally large."""

ONE_TOKEN = {
    "aggregate": ("response-mean", "token-sum", "prompt-mean", "sum"),
    "ratio": ("sequence", "sequence-token", "product"),
}
"""What is the same where there is only one token."""

NEUTRAL = {
    "advantage": "given",
    "ratio": "token",
    "kl": "none",
    "correction": "none",
    "split": "none",
}
STAGES = ("advantage", "ratio", "surrogate", "kl", "correction", "aggregate", "split")


@dataclass(frozen=True)
class Signature:
    """One way in which implementations settle what a case leaves open.

    Attributes:
        used_by: the implementations that do.
        how: the oracle's choices and hyperparameters for it, in addition to the case's.
        value: what to expect where the oracle has no number (as NaN).
    """

    used_by: Sequence[str]
    how: Mapping[str, Any] = field(default_factory=dict)
    value: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Vector:
    """One case. ``how`` holds the choices by stage and the hyperparameters together."""

    name: str
    comment: str
    flags: Sequence[str]
    columns: Columns
    how: Mapping[str, Any]
    wanted: Sequence[str] = ("loss", "gradient")
    same_under: Mapping[str, Sequence[str]] = field(default_factory=dict)
    dtypes: Sequence[str] = ("float64", "float32", "bfloat16")
    signatures: Mapping[str, Signature] = field(default_factory=dict)
    refuses: str = ""
    topic: str = ""
    split: Sequence[Sequence[Sequence[int]]] | None = None

    @property
    def result(self) -> str:
        if self.refuses:
            return "invalid"
        return "convention" if self.signatures else "required"

    @property
    def choices(self) -> dict[str, str]:
        """Every stage that plays a part, also where it does nothing."""
        own = {stage: self.how[stage] for stage in STAGES if stage in self.how}
        if "surrogate" not in self.how:
            return {"kl": "none"} | own
        chosen = NEUTRAL | own | ({} if self.split is None else {"split": kind_of(self.split)})
        return {stage: chosen[stage] for stage in STAGES}

    @property
    def hyperparameters(self) -> dict[str, Any]:
        return {name: value for name, value in self.how.items() if name not in STAGES}


def kind_of(split: Sequence[Sequence[Sequence[int]]]) -> str:
    several = [
        name for name, n in (("ranks", len(split)), ("micro-batches", len(split[0]))) if n > 1
    ]
    return " and ".join(several) or "none"


def columns(
    new: Rows,
    *,
    advantages: Sequence[float] | None = None,
    rewards: Sequence[Any] | None = None,
    groups: Sequence[int] | None = None,
    mask: Rows | None = None,
    **tokens: Rows,
) -> dict[str, Any]:
    """An input; without ``mask`` every token counts, without ``groups`` there is one prompt."""
    made: dict[str, Any] = {TOKENS[name]: rows for name, rows in {"new": new, **tokens}.items()}
    made["mask"] = mask or [[1] * len(row) for row in new]
    if advantages is not None:
        made["advantages"] = advantages
    if rewards is not None:
        made["rewards"] = rewards
    made["group_ids"] = list(groups or [0] * len(new))
    return made


def scored(
    rewards: Sequence[Any],
    groups: Sequence[int] | None = None,
    lengths: Sequence[int] | None = None,
    **tokens: Rows,
) -> dict[str, Any]:
    """An input for advantages: rewards, with a token or so in each response."""
    new = [[-1.0] * n for n in (lengths or [1] * len(rewards))]
    return columns(new, rewards=rewards, groups=groups, **tokens)


def drawn(seed: str, lengths: Sequence[int], choices: Sequence[float]) -> list[list[float]]:
    """Rows of ``choices``, the same at every time and place."""
    digest = sha256(seed.encode()).digest() * (1 + sum(lengths) // 32)
    source = iter(digest)
    return [[choices[next(source) % len(choices)] for _ in range(n)] for n in lengths]


OLD = [-k / 16 for k in range(14, 56)]
NEAR = [-0.125, -0.0625, 0.0, 0.0625, 0.125, 0.15625]
"""Log ratios that a clip of 0.2 leaves alone."""
FAR = [-0.75, -0.5, -0.375, -0.125, 0.0625, 0.125, 0.375, 0.5, 0.625]
"""Log ratios on both sides of a clip of 0.2 or 0.28, none near its edges."""
APART = [-0.5, -0.25, -0.125, 0.125, 0.25, 0.375]
"""Of the reference and of the engine that sampled."""


def random_columns(
    seed: str,
    lengths: Sequence[int],
    *,
    steps: Sequence[float] = FAR,
    advantages: Sequence[float] | None = None,
    with_columns: Sequence[str] = (),
    **more: Any,
) -> dict[str, Any]:
    """A batch at random: old log-probs, and the others by steps from them."""
    old = drawn(f"{seed} old", lengths, OLD)
    made = {"new": moved(old, drawn(f"{seed} new", lengths, steps)), "old": old}
    for name in with_columns:
        made[name] = moved(old, drawn(f"{seed} {name}", lengths, APART))
    given = advantages or drawn(f"{seed} advantages", [len(lengths)], [1.0, -1.0, 0.5, -0.75])[0]
    return columns(**made, advantages=given, **more)


def moved(rows: Rows, steps: Rows) -> list[list[float]]:
    return [
        [x + s for x, s in zip(row, more, strict=True)]
        for row, more in zip(rows, steps, strict=True)
    ]
