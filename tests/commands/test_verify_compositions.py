"""Mistakes that ``verify`` composes of a stage's alternatives, made by definition.

The policy is on-policy (ρ = 1) unless a test says otherwise: a token's value and gradient are A.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import run
from files import each, expressions
from mistakes import BETA, difference, k3

from grpo_cli import verify

LENGTHS = [5, 4, 6, 3]
NEW = [[-0.5 - 0.1 * row - 0.07 * at for at in range(n)] for row, n in enumerate(LENGTHS)]
REF = [[-0.9 - 0.02 * row + 0.05 * at for at in range(n)] for row, n in enumerate(LENGTHS)]
MASK = [[1, 1, 0, 0, 1], [1, 0, 1, 1], [1, 1, 0, 1, 1, 1], [1, 0, 1]]
A = [1.0, -0.5, 0.75, -2.0]
COLUMNS: dict[str, Any] = {
    "log_probs_new": NEW,
    "log_probs_old": NEW,
    "log_probs_ref": REF,
    "log_probs_rollout": None,
    "advantages": A,
}
Weight = Callable[[int, int], float]


def mean_over(mask: Sequence[Sequence[int]]) -> Weight:
    """The weights of a mean over responses of means over the tokens that count."""
    return lambda row, at: mask[row][at] / sum(mask[row]) / len(mask)


def expected(
    policy: Weight, kl: Weight = lambda *_: 0.0, a: Sequence[float] = A, beta: float = BETA
) -> dict[str, Any]:
    """J and its gradient, where each term has weights of its own."""
    total, slopes = 0.0, []
    for row, n in enumerate(LENGTHS):
        slopes.append([])
        for at in range(n):
            value, slope = k3(NEW[row][at] - REF[row][at])
            total += policy(row, at) * a[row] - beta * kl(row, at) * value
            slopes[-1].append(policy(row, at) * a[row] - beta * kl(row, at) * slope)
    return {"objective": total, "gradient": slopes}


def of_mask(policy: Sequence[Sequence[int]], kl: Sequence[Sequence[int]]) -> dict[str, Any]:
    return expected(mean_over(policy), mean_over(kl))


def found(numbers: dict[str, Any], *, beta: float = BETA, **more: Any) -> list[str]:
    flags = {"beta": beta, **more.pop("flags", {})}
    return [*difference(numbers, flags=flags, **{**COLUMNS, **more}).causes]


def strided(rewards: list[float]) -> list[float]:
    """Advantages of groups of every second row."""
    groups = [rewards[at % 2 :: 2] for at in range(len(rewards))]
    return [
        (reward - statistics.fmean(own)) / (statistics.stdev(own) + 1e-8)
        for reward, own in zip(rewards, groups, strict=True)
    ]


EVERY = [[1] * n for n in LENGTHS]
OLD = [[x - 0.3 + 0.1 * at for at, x in enumerate(row)] for row in NEW]
ENGINE = [[x - 0.25 + 0.13 * at for at, x in enumerate(row)] for row in NEW]


def moved(policy: Callable[[int, int, float], tuple[float, float]], **more: Any) -> list[str]:
    """What is said of values and slopes of tokens by row, position and log ratio; no KL."""
    total, slopes = 0.0, []
    for row, n in enumerate(LENGTHS):
        each_token = [policy(row, at, NEW[row][at] - OLD[row][at]) for at in range(n)]
        total += sum(value for value, _ in each_token) / n / len(A)
        slopes.append([slope / n / len(A) for _, slope in each_token])
    flags = {"epsilon_low": 0.9, "epsilon_high": 9.0}
    numbers = {"objective": total, "gradient": slopes}
    return found(numbers, beta=0.0, flags=flags, log_probs_old=OLD, **more)


def corrected(level: Any) -> list[str]:
    weights = [
        level([math.exp(old - engine) for old, engine in zip(*rows, strict=True)])
        for rows in zip(OLD, ENGINE, strict=True)
    ]
    return moved(
        lambda row, _, d: (weights[row] * math.exp(d) * A[row],) * 2,
        stages={"correction": "token-truncate"},
        log_probs_rollout=ENGINE,
    )


# ---- two mistakes in one loss ------------------------------------------------------------------


def drawn(seed: int) -> dict[str, Any]:
    """A group of five responses whose ratios pass both bounds, and whose last tokens are 9."""
    random = np.random.default_rng(seed)
    lengths, columns = [5, 3, 7, 1, 4], {}
    old = [-random.uniform(0.5, 3.0, n) for n in lengths]
    for name, spread in (("old", 0.0), ("new", 0.25), ("ref", 0.3), ("rollout", 0.02)):
        moved = [one + random.normal(0.0, spread, len(one)) for one in old]
        columns[f"log_probs_{name}"] = [np.minimum(one, -1e-3).tolist() for one in moved]
    ids = [[*range(1, n), 9 if row < 4 else 8] for row, n in enumerate(lengths)]
    rest = {"rewards": [1.0, 0.0, 0.3, 0.0, 0.5], "token_ids": ids, "epsilon_high": 0.2}
    return columns | rest


RIGHT: dict[str, Any] = {
    "weight": lambda n: [1.0 / (len(n) * one) for one in n],
    "advantage": lambda r, n: (r - r.mean()) / (r.std(ddof=1) + 1e-8),
    "turn": 1.0,
    "surrogate": lambda ratio, a: np.minimum(ratio * a, np.clip(ratio, 0.8, 1.2) * a),
    "slope": lambda ratio, a: ratio * a * (ratio * a <= np.clip(ratio, 0.8, 1.2) * a),
    "bound": math.inf,
    "beta": 0.04,
    "drops": (),
}
"""Each part of a right loss: GRPO with the mean of token means, clipped at 0.2, with k3."""


def made_of(record: dict[str, Any], **wrong: Any) -> dict[str, Any]:
    """The loss and its gradient by definition, with some parts wrong."""
    own, loss, slopes = {**RIGHT, **wrong}, 0.0, []
    new, old, ref = (record[f"log_probs_{name}"] for name in ("new", "old", "ref"))
    kept = [
        np.array([one not in own["drops"] or len(row) == 1 for one in row])
        for row in record["token_ids"]
    ]
    n = np.array([one.sum() for one in kept], float)
    a = own["advantage"](np.array(record["rewards"]), n)
    for row, weight in enumerate(own["weight"](n.tolist())):
        x, y, z = (np.array(column[row]) for column in (new, old, ref))
        moved = own["turn"] * (x - y)
        ratio = np.exp(np.clip(moved, -own["bound"], own["bound"]))
        slope = own["turn"] * own["slope"](ratio, a[row]) * (np.abs(moved) <= own["bound"])
        values = own["surrogate"](ratio, a[row]) - own["beta"] * (np.exp(z - x) - (z - x) - 1)
        slope = slope - own["beta"] * (1 - np.exp(z - x))
        loss -= weight * float((kept[row] * values).sum())
        slopes.append((-weight * kept[row] * slope).tolist())
    return {"loss": loss, "loss_gradient": slopes}


def named(variant: str = "grpo", *, gradient: bool = True, **wrong: Any) -> str:
    """What ``verify`` says of three records with these parts wrong; "" where it is not of all."""
    records = []
    for record in map(drawn, range(3)):
        numbers = made_of(record, **wrong)
        expects = numbers if gradient else {"loss": numbers["loss"]}
        records.append(record | {"expected": expects})
    answer = verify(records, variant)
    return answer.causes[0] if answer.explained == answer.differing == 3 else ""


@each("steps", [True, False])
def test_a_mask_without_end_of_text_is_found_by_its_id(steps) -> None:
    """The longest response ends too, another is cut, and one is nothing but its end."""
    records = [drawn(at) for at in range(4)]
    losses = [made_of(record, drops=(9,))["loss"] for record in records]
    if steps:
        losses = [(losses[at] + losses[at + 1]) / 2 for at in (0, 0, 2, 2)]
    made = [
        record | {"expected": {"loss": loss}, "step": at // 2}
        for at, (record, loss) in enumerate(zip(records, losses, strict=True))
    ]
    answer = verify(made, "grpo")
    assert answer.explained == answer.differing == (2 if steps else 4)
    assert "end of text" in answer.causes[0]


def test_readings_of_a_denominator_behind_another_mistake_are_one_sentence(tmp_path) -> None:
    """The mean over three micro-batches of four responses, with another eps: both once."""
    draw = np.random.default_rng(3)
    rows = []
    for step in range(6):
        rewards, lengths = draw.random(12) * 1e-3, draw.integers(2, 20, 12)
        given = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
        parts = ((given * lengths).reshape(3, 4).sum(1) / lengths.reshape(3, 4).sum(1)).tolist()
        policy = [draw.uniform(-2, -1, length).tolist() for length in lengths]
        row = {"step": step, "rewards": rewards.tolist(), "log_probs_new": policy}
        rows.append(row | {"log_probs_old": policy, "expected": {"loss": -sum(parts) / 3}})
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    said = " ".join(run("verify", path, "-p", "beta=0", "--batch", "step").stdout.split())
    assert said.count("std_eps 0.0001 instead of 1e-08") == 1
    assert "and another denominator: your loss is the mean of the token means of" in said


@pytest.mark.parametrize(
    "name", ["compositions", pytest.param("compositions_more", marks=pytest.mark.more)]
)
def test_compositions_are_named(name: str) -> None:
    expressions(Path(__file__).parent / f"cases/verify/{name}.txt", globals())
