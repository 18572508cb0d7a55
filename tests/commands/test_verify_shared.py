"""Causes of many records: what explains all of them is named, what fits one by chance is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from grpo_cli import verify

LOW, HIGH = 0.2, 0.28
Rows = list[np.ndarray]


def record(random: np.random.Generator, groups: Sequence[int]) -> dict[str, Any]:
    """Responses to a prompt per group, with a reference."""
    lengths = random.integers(4, 14, sum(groups))
    old = [random.uniform(-3, -0.1, length) for length in lengths]
    return {
        "log_probs_rollout": [np.minimum(row + random.normal(0, 0.1, len(row)), 0) for row in old],
        "log_probs_new": [np.minimum(row + random.normal(0, 0.2, len(row)), -0.01) for row in old],
        "log_probs_old": old,
        "log_probs_ref": [np.minimum(row + random.normal(0, 0.3, len(row)), 0.0) for row in old],
        "advantages": random.normal(0, 1, len(old)),
        "group_ids": np.repeat(np.arange(len(groups)), groups),
    }


def clipped(made: dict[str, Any]) -> Rows:
    """min(ρ·A, clip(ρ)·A) of each token."""
    ratios = (
        np.exp(new - old)
        for new, old in zip(made["log_probs_new"], made["log_probs_old"], strict=True)
    )
    return [
        np.minimum(ratio * a, np.clip(ratio, 1 - LOW, 1 + HIGH) * a)
        for ratio, a in zip(ratios, made["advantages"], strict=True)
    ]


def k3(made: dict[str, Any]) -> Rows:
    pairs = zip(made["log_probs_new"], made["log_probs_ref"], strict=True)
    return [np.exp(ref - new) - 1 + new - ref for new, ref in pairs]


def token_mean(rows: Rows) -> float:
    return float(np.concatenate(rows).mean())


def verified(rows: Sequence[dict[str, Any]], losses: Sequence[float], **more: Any) -> Any:
    given = [
        {key: [each.tolist() for each in value] for key, value in row.items()}
        | {"id": at, "expected": {"loss": loss}}
        for at, (row, loss) in enumerate(zip(rows, losses, strict=True))
    ]
    return verify(given, "bnpo", epsilon_low=LOW, epsilon_high=HIGH, **more)


def test_of_causes_that_fit_the_first_record_the_one_that_fits_all_is_named() -> None:
    """In records of two prompts of one size, the mean of two micro-batches is that of prompts."""
    random = np.random.default_rng(7)
    rows = [record(random, groups) for groups in ((4, 4), (6,), (8,), (4,), (4, 4), (6,))]
    losses = []
    for row in rows:
        values, half = clipped(row), len(row["advantages"]) // 2
        losses.append(-0.5 * (token_mean(values[:half]) + token_mean(values[half:])))
    found = verified(rows, losses, beta=0.0)
    words = "the mean of the token means of 2 micro-batches; bnpo divides by tokens"
    assert (found.causes, found.explained) == ((words,), 6)
    alone = verified(rows[:1], losses[:1], beta=0.0)
    assert "other denominator: aggregate prompt-mean instead of token-mean" in alone.causes


def test_a_cause_of_a_lone_number_of_one_of_many_records_is_only_possible() -> None:
    random = np.random.default_rng(8)
    rows = [record(random, (4,)) for _ in range(8)]
    plain = [-token_mean(clipped(row)) for row in rows]
    losses = [one + random.uniform(0.1, 0.2) for one in plain]
    losses[3] = plain[3]
    found = verified(rows, losses, beta=0.1)
    assert (found.differing, found.explained) == (8, 0)
    first = found.records[3].first
    assert (first.causes, first.stage, first.mistakes) == ((), "loss", ())
    assert "KL missing (β = 0)" in first.possible
    assert "KL missing (β = 0)" in verified(rows[3:4], losses[3:4], beta=0.1).causes


@pytest.mark.more
def test_a_term_with_a_denominator_of_its_own_is_named_from_losses_alone() -> None:
    random = np.random.default_rng(10)
    rows = [record(random, groups) for groups in ((4,), (3, 3), (5,))]
    policy = [-token_mean(clipped(row)) for row in rows]
    kl = [np.concatenate(k3(row)).sum() for row in rows]
    counts = {
        "KL over another denominator: your loss divides each token by responses × the padded "
        "width (mean over padded positions); bnpo divides by tokens": [
            len(row["log_probs_old"]) * max(map(len, row["log_probs_old"])) for row in rows
        ],
        "KL times the number of responses": [
            sum(map(len, row["log_probs_old"])) / len(row["log_probs_old"]) for row in rows
        ],
    }
    for words, by in counts.items():
        losses = [x + 0.1 * y / n for x, y, n in zip(policy, kl, by, strict=True)]
        assert verified(rows, losses, beta=0.1).causes[0] == words
    losses = [one + random.uniform(0.01, 0.02) for one in losses]
    assert verified(rows, losses, beta=0.1).explained == 0


def test_another_correction_is_named_from_losses_alone() -> None:
    random = np.random.default_rng(13)
    rows = [record(random, (4,)) for _ in range(3)]
    losses = []
    for row in rows:
        pairs = zip(row["log_probs_old"], row["log_probs_rollout"], clipped(row), strict=True)
        losses.append(-token_mean([np.exp((old - mu).mean()) * x for old, mu, x in pairs]))
    found = verified(rows, losses, beta=0.0, stages={"correction": "token-truncate"})
    words = "correction by π_old/π_engine, the geometric mean over each response"
    assert words in found.causes
