"""A convention drawn at random, as the words of ``grpo eval`` that compute its number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trials.product import run
from trials.simulate.policy import Random

ROWS = [
    "grpo",
    "dr",
    "dapo",
    "gspo",
    "rloo",
    "bnpo",
    "cispo",
    "lite-ppo",
    "opo",
    "gpg",
    "grpo-k1",
    "grpo-unbiased-kl",
    "dapo-prompt",
    "max-rl",
    "sapo",
    "gmpo",
    "dual-clip",
    "deepseek-v3.2",
    "reinforce++-baseline",
    "trl/grpo",
    "trl/bnpo",
    "trl/dr_grpo",
    "trl/dapo",
    "trl/cispo",
    "trl/gspo",
    "trl/sapo",
    "trl/rloo",
    "verl/vanilla",
    "verl/gspo",
    "verl/cispo",
    "verl/sapo",
    "verl/gpg",
    "openrlhf/ppo",
    "openrlhf/dr_grpo",
    "openrlhf/gspo",
    "nemo-rl/grpo",
    "nemo-rl/dapo",
    "nemo-rl/gspo",
    "slime/grpo",
    "slime/gspo",
    "areal/grpo",
    "areal/dapo",
    "skyrl/regular",
    "roll/ppo",
    "prime-rl/grpo",
    "open-instruct/grpo",
    "ms-swift/grpo",
    "ms-swift/dapo",
    "tinker/ppo",
    "unsloth/dapo",
    "liger/dapo",
]
"""The rows of papers and frameworks that numbers come from."""

DEVIATIONS = (
    ("--aggregate", "token-mean"),
    ("--aggregate", "response-mean"),
    ("--aggregate", "token-sum"),
    ("--aggregate", "token-sum-norm"),
    ("--aggregate", "prompt-mean"),
    ("--aggregate", "sum"),
    ("--advantage", "group-mean"),
    ("--advantage", "leave-one-out"),
    ("--advantage", "group-std", "-p", "std_ddof=0", "-p", "std_eps=1e-8", "-p", "std_min=0"),
    ("--kl", "k1"),
    ("--kl", "k2"),
    ("--kl", "k3"),
    ("--kl", "none"),
    ("--surrogate", "unclipped"),
    ("--ratio", "sequence"),
    ("--ratio", "token"),
)
"""What people change in one: a stage at a time."""

FACTORS = ("1", "1", "1", "1", "-1", "/", "/", "*", "-/")
"""As it is, the other sign, divided or multiplied by the accumulation steps."""


@dataclass(frozen=True)
class Truth:
    """The convention behind a number.

    Attributes:
        words: of ``grpo eval``, without the file.
        factor: what its loss is multiplied by.
        constants: the ε and β in the words, where the question does not tell them.
    """

    words: tuple[str, ...]
    factor: float
    constants: dict[str, float]

    def value(self, path: str) -> float | None:
        """The number that would be logged; None where the convention cannot be evaluated."""
        answer = run("eval", path, *self.words, "--level", "batch")
        found = ((answer.document or {}).get("total") or {}).get("loss")
        return None if answer.code or found is None else self.factor * float(found)


def drawn(random: Random, steps: int, *, known: bool) -> Truth:
    """A row, none to two deviations, and a factor; ε and β besides where nobody knows them."""
    words = ["-v", str(random.choice(ROWS))]
    changed: set[str] = set()
    for _ in range(int(random.choice([0, 1, 2], p=[0.4, 0.4, 0.2]))):
        deviation = DEVIATIONS[int(random.integers(len(DEVIATIONS)))]
        if deviation[0] not in changed:
            changed.add(deviation[0])
            words += deviation
    factor = str(random.choice(FACTORS))
    times = -1.0 if factor.startswith("-") else 1.0
    times = times / steps if factor.endswith("/") else times * steps if factor == "*" else times
    constants = {} if known else _constants(random)
    return Truth(tuple(words), times, constants)


def _constants(random: Random) -> dict[str, float]:
    """ε and β as people choose them: half of the time the usual ones, else other round numbers."""
    usual = random.random() < 0.5
    return {
        "epsilon": 0.2 if usual else float(random.choice([0.1, 0.15, 0.25, 0.3])),
        "beta": float(
            random.choice([0.001, 0.01, 0.04, 0.1] if usual else [0.003, 0.005, 0.02, 0.05, 0.15])
        ),
    }


def unequal(random: Random) -> dict[str, float]:
    """An ε on either side, as people choose them."""
    low, high = random.choice([0.1, 0.15, 0.2]), random.choice([0.22, 0.25, 0.28, 0.3])
    return {"epsilon-low": float(low), "epsilon-high": float(high)}


def hyperparameters(random: Random, steps: int) -> dict[str, Any]:
    """What a record says that tells its hyperparameters."""
    return {
        "epsilon_low": 0.2,
        "epsilon_high": float(random.choice([0.2, 0.28])),
        "beta": float(random.choice([0.0, 0.01, 0.04])),
        "max_completion_length": 64,
        "gradient_accumulation_steps": steps,
    }


def rounded(value: float, digits: int) -> str:
    """A number with so many significant digits, zeros kept, as a log prints it."""
    return str(np.format_float_positional(value, digits, unique=False, fractional=False, trim="k"))


def with_constants(line: str, constants: dict[str, float]) -> str:
    """A printed command with its ε and β set to the truth's (they are solved for, not exact)."""
    words = line.split(" ")
    for at, word in enumerate(words):
        for name, value in constants.items():
            if word.startswith(f"--{name}") and at + 1 < len(words):
                words[at + 1] = repr(value)
            elif word.startswith(name) and "=" in word and words[at - 1] == "-p":
                words[at] = f"{word.partition('=')[0]}={value!r}"
    return " ".join(words)


def flags(words: Sequence[str], constants: dict[str, float], path: str) -> tuple[str, ...] | None:
    """The words with those of ε and β that the convention takes; None where it takes neither."""
    taken = tuple(words)
    for name, value in constants.items():
        more = (*taken, f"--{name}", repr(value))
        if run("eval", path, *more, "--level", "batch").code == 0:
            taken = more
    return taken if taken != tuple(words) else None
