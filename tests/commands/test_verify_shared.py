"""Causes of many records: what explains all of them is named, what fits one by chance is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from files import each
from rows import ESTIMATES

from grpo_cli import verify
from grpo_cli.commands.verify.causes import search

pytestmark = pytest.mark.more

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


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return {key: [one.tolist() for one in value] for key, value in row.items()}


def verified(rows: Sequence[dict[str, Any]], losses: Sequence[float], **more: Any) -> Any:
    given = [
        plain(row) | {"id": at, "expected": {"loss": loss}}
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


def rewarded(seed: int) -> list[dict[str, Any]]:
    """Records of one prompt each, whose rewards spread differently."""
    random = np.random.default_rng(seed)
    rows = [record(random, (4,)) for _ in range(4)]
    for at, row in enumerate(rows):
        row["rewards"] = random.normal(0, 1 + at, 4)
        row["entropies"] = [random.uniform(0.1, 2, len(one)) for one in row["log_probs_old"]]
    return rows


@each("digits", [17, 6])
def test_one_std_of_all_records_is_named_from_losses_alone(digits) -> None:
    rows = rewarded(23)
    for row in rows:
        del row["advantages"]
    std = np.concatenate([row["rewards"] for row in rows]).std(ddof=1)
    made = [row | {"advantages": (row["rewards"] - row["rewards"].mean()) / std} for row in rows]
    losses = [float(f"{-token_mean(clipped(row)):.{digits}g}") for row in made]
    found = verified(rows, losses, beta=0.0)
    assert (found.explained, len(found.causes)) == (4, 1)
    one, named, *_ = found.causes[0].split(", ")
    assert one == "advantages divided by one std in all records"
    assert float(named.split()[0]) == pytest.approx(std, rel=1e-4)
    losses[-1] += 0.1
    assert verified(rows, losses, beta=0.0).explained < 4


def test_losses_that_nothing_explains_are_searched_for_two_mistakes_once(monkeypatch) -> None:
    """With the first two of them together, which no other two explain."""
    pairs: set[float] = set()
    own = search._searched

    def searched(case: Any, wanted: Any, *more: Any) -> Any:
        pairs.update([case.loss] if more else [])
        return own(case, wanted, *more)

    monkeypatch.setattr(search, "_searched", searched)
    rows = [{k: x for k, x in one.items() if k != "advantages"} for one in rewarded(24)]
    losses = [0.3123456789 + 0.1 * at for at in range(4)]
    assert verified(rows, losses, beta=0.0).explained == 0
    assert pairs == {-losses[1]}
    assert verified(rows[:1], losses[:1], beta=0.0).explained == 0
    assert pairs == {-losses[0], -losses[1]}


@each(("mean", "coefficient"), [("token-mean", 0.015), ("response-mean", 0.001)])
def test_an_entropy_bonus_of_recorded_entropies_is_named(mean, coefficient) -> None:
    rows = rewarded(22)
    losses = []
    for row in rows:
        own = [one.mean() for one in row["entropies"]]
        bonus = token_mean(row["entropies"]) if mean == "token-mean" else np.mean(own)
        losses.append(-token_mean(clipped(row)) - coefficient * bonus)
    found = verified(rows, losses, beta=0.0)
    words = f"entropy bonus that no setting asks for: entropy_coef {coefficient:g} ({mean})"
    assert (found.causes[0], found.explained) == (words, 4)
    losses = [one + 0.01 * at for at, one in enumerate(losses)]
    assert verified(rows, losses, beta=0.0).explained == 0


@pytest.mark.parametrize("kind", ESTIMATES)
def test_a_kl_that_the_variant_does_not_have_is_named_from_losses_alone(kind: str) -> None:
    random = np.random.default_rng(12)
    rows = [record(random, (4, 4)) for _ in range(6)]
    losses = []
    for row in rows:
        pairs = zip(row["log_probs_new"], row["log_probs_ref"], strict=True)
        kl = token_mean([ESTIMATES[kind](new - ref) for new, ref in pairs])
        losses.append(0.04 * kl - token_mean(clipped(row)))
    words = f"β is 0.04 instead of 0: your loss has a KL ({kind})"
    found = verified(rows, losses, beta=0.0)
    assert (found.causes, found.explained) == ((words,), found.differing)
    assert found.differing >= 5  # a k1 may add up to 0
    one = verified(rows[:1], losses[:1], beta=0.0)
    assert (one.explained, one.causes) in ((0, ()), (1, (words,)))


def test_a_mistake_that_records_share_comes_first_in_each() -> None:
    """No clip fits the first record as well, where the clip binds every token beyond it."""
    made = []
    for at, first in enumerate((1.5, 0.6, 0.7)):
        ratios = [[first, 1.5, 1.0], [1.0, 0.7, 1.1 + 0.01 * at]]
        wanted = [
            sum(max(r * a, min(max(r, 0.8), 1.2) * a) for r in row) / len(row)
            for row, a in zip(ratios, (1.0, -0.7), strict=True)
        ]
        new = (np.log(ratios) - 2.0).tolist()
        record = {"id": at, "log_probs_new": new, "log_probs_old": [[-2.0] * 3] * 2}
        record["advantages"] = [1.0, -0.7]
        made.append(record | {"expected": {"loss": -sum(wanted) / 2}})
    found = verify(made, "grpo", stages={"kl": "none"}, epsilon=0.2)
    firsts = [row.first for row in found.records if row.first is not None]
    assert [one.mistakes[0] for one in firsts] == ["clip-greater"] * 3
    assert [row["mistake"] for row in found.table()] == ["clip-greater"] * 3
    assert "clip-unused" in firsts[0].mistakes
