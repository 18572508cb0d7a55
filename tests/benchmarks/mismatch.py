"""How often ``grpo check`` names the planted cause of a mismatch first, and any on clean batches.

    python tests/benchmarks/mismatch.py [--seeds 100] [--first 10000] [--responses 256]

A batch has responses of an engine whose logits differ from the trainer's by noise, at a scale of
each response's own. One cause is planted at three strengths: the KL that it adds is about a half,
two times and eight times that of the noise. Seeds below 10000 were used to build.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from asking import arguments

from grpo_cli.batch import Segments
from grpo_cli.objective.mismatch import Attribution, Mismatch

NOISE = 0.03
CLEAN: dict[str, dict[str, Any]] = {
    "normal noise": {},
    "heavy tails": {"tails": 3.0},
    "uneven responses": {"spread": 0.8},
    "few responses": {"count": 16},
    "few and uneven": {"count": 16, "spread": 0.8, "tails": 3.0},
}
STRENGTHS = {"weak": 0.5, "plain": 2.0, "strong": 8.0}


class Drawn(NamedTuple):
    """A clean batch."""

    rows: Segments
    old: np.ndarray
    rollout: np.ndarray
    turns: np.ndarray
    versions: np.ndarray
    random: np.random.Generator


def draw(
    seed: int, count: int, tails: float = 0.0, spread: float = 0.25, noise: float = NOISE
) -> Drawn:
    """Responses of 30 to 400 tokens in three turns, of four versions; later tokens are surer.

    Args:
        seed: of the batch.
        count: responses.
        tails: degrees of freedom of Student's t that the noise has; 0 for normal noise.
        spread: of the logarithm of the responses' scales.
        noise: of the logits.
    """
    random = np.random.default_rng(seed)
    rows = Segments(random.integers(30, 400, count))
    place = rows.positions / rows.spread(rows.lengths)
    exact = -random.gamma(0.4, 2.0 - place)
    turns = (3 * place).astype(np.int64)
    starts = random.integers(3, 6, count)
    switch = rows.spread(random.random(count))
    versions = rows.spread(starts) + (place > switch)
    scale = rows.spread(np.exp(random.normal(0.0, spread, count)))
    size = noise * scale * -np.expm1(exact)
    drawn = random.standard_t(tails, len(exact)) if tails else random.normal(size=len(exact))
    rollout = exact.astype(np.float32).astype(np.float64)
    return Drawn(rows, np.minimum(exact + size * drawn, 0.0), rollout, turns, versions, random)


def logits(random: np.random.Generator, log_probs: np.ndarray) -> np.ndarray:
    """What unit noise of the logits does to log-probs."""
    return random.normal(size=len(log_probs)) * -np.expm1(log_probs)


def energy(change: np.ndarray) -> float:
    return float(np.mean(np.expm1(change) - change))


def noise_at(among: Callable[[Drawn], np.ndarray]) -> Callable[[Drawn, float], Drawn]:
    """More noise of the logits at some tokens, so that its KL is a multiple of the clean one's."""

    def plant(one: Drawn, strength: float) -> Drawn:
        extra = logits(one.random, one.rollout) * among(one)
        clean = energy(one.old - one.rollout)
        extra *= np.sqrt(strength * clean / max(np.mean(extra**2) / 2, 1e-30))
        return one._replace(old=np.minimum(one.old + extra, 0.0))

    return plant


def plant_support(one: Drawn, strength: float) -> Drawn:
    """The engine reports probabilities that top-p renormalised; sure tokens lose nothing."""
    lost = one.random.random(one.rows.total) * -np.expm1(one.rollout)
    size = np.sqrt(strength * energy(one.old - one.rollout) / (np.mean(lost**2) / 2))
    return one._replace(old=one.old - np.minimum(size, 1.0) * lost)


def plant_outliers(one: Drawn, strength: float) -> Drawn:
    """Some tokens of 3 nats each."""
    wanted = strength * energy(one.old - one.rollout) * one.rows.total
    count = max(round(wanted / (np.expm1(-3.0) + 3.0)), 1)
    old = one.old.copy()
    old[one.random.choice(one.rows.total, count, replace=False)] -= 3.0
    return one._replace(old=old)


def plant_rounding(one: Drawn, strength: float) -> Drawn:
    """The engine's log-probs in bf16, the noise made as small as the strength asks."""
    bits = (one.rollout.astype(np.float32).view(np.uint32) + 0x8000) & np.uint32(0xFFFF0000)
    rounded = bits.view(np.float32).astype(np.float64)
    clean = one.old - one.rollout
    size = np.sqrt(energy(rounded - one.rollout) / strength / energy(clean))
    return one._replace(rollout=rounded, old=np.minimum(one.rollout + min(size, 1.0) * clean, 0.0))


def _quarter(one: Drawn) -> np.ndarray:
    return one.rows.positions * 4 // one.rows.spread(one.rows.lengths)


PLANTED: dict[str, Callable[[Drawn, float], Drawn]] = {
    "version": noise_at(lambda one: one.versions < one.versions.max()),
    "turn": noise_at(lambda one: one.turns == 1),
    "position": noise_at(lambda one: _quarter(one) == 3),
    "support": plant_support,
    "outliers": plant_outliers,
    "precision": plant_rounding,
}


def attribute(one: Drawn, **columns: Any) -> Attribution:
    found = Mismatch()
    found.add(one.old, one.rollout, one.rows, **columns)
    result = found.result()
    assert result is not None
    return result


def named(one: Drawn, cause: str) -> str:
    """The cause that is named first. Turns are places: where a place is planted none is given."""
    columns = {"versions": one.versions}
    if cause != "position":
        columns["turns"] = one.turns
    first = attribute(one, **columns).first
    return "nothing" if first is None else first.name


def main() -> None:
    parser = arguments(__doc__, 100, hold="below the rates of the report")
    parser.add_argument("--responses", type=int, default=256)
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.seeds)
    false = 0
    for word, how in CLEAN.items():
        clean = Counter(named(draw(seed, **{"count": given.responses} | how), "") for seed in seeds)
        del clean["nothing"]
        false += clean.total() - clean["outliers"]  # heavy tails have some
        print(f"clean, {word}: named {clean.total()} of {given.seeds}  {dict(clean) or ''}")
    right = 0
    for cause, plant in PLANTED.items():
        for word, strength in STRENGTHS.items():
            found = Counter(
                named(plant(draw(seed, given.responses), strength), cause) for seed in seeds
            )
            right += found[cause] if word != "weak" else 0
            others = {name: count for name, count in found.items() if name != cause}
            print(f"{cause:10} {word:7} {found[cause]:4} of {given.seeds}  {others or ''}")
    whole = 2 * len(PLANTED) * given.seeds
    print(f"plain and strong: {right} of {whole} ({right / whole:.0%})")
    if given.hold and (false or right < 0.9 * whole):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
