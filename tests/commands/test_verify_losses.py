"""A wrong ε or β, where only losses are recorded: one value has to give all of them.

The mistakes and their causes are in ``cases/verify/losses.txt``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import expressions

from grpo_cli import evaluate, verify

pytestmark = pytest.mark.more

OWN = {"epsilon_low": 0.2, "epsilon_high": 0.2, "beta": 0.04}


def record(random: np.random.Generator) -> dict[str, Any]:
    """Six responses with ratios far beyond both bounds."""
    old = [random.uniform(-3, -0.1, length) for length in random.integers(5, 30, 6)]
    new = [np.minimum(row + random.normal(0, 0.3, len(row)), -1e-3) for row in old]
    ref = [np.minimum(row + random.normal(0, 0.2, len(row)), -1e-3) for row in old]
    columns = {"log_probs_new": new, "log_probs_old": old, "log_probs_ref": ref}
    return {
        **{name: [row.tolist() for row in rows] for name, rows in columns.items()},
        "rewards": (random.integers(0, 4, 6) + 0.03 * np.arange(6)).tolist(),
        "hyperparameters": OWN,
    }


_random = np.random.default_rng(3)
RECORDS = [record(_random) for _ in range(4)]
NO_KL = [one | {"hyperparameters": OWN | {"beta": 0.0}} for one in RECORDS]


def loss_of(records: Any, wrong: dict[str, float], digits: int = 17) -> float:
    """The loss with wrong settings, as a log has it."""
    several = [records] if isinstance(records, dict) else records
    made = [{**one, "hyperparameters": {**OWN, **wrong}} for one in several]
    return float(f"{evaluate(made, 'grpo').loss:.{digits}g}")


def verdict(
    records: Sequence[dict[str, Any]], losses: Sequence[float], row: str = "grpo", **flags: Any
) -> list[str]:
    """The causes of records that expect these losses."""
    pairs = zip(records, losses, strict=True)
    answer = verify([{**one, "expected": {"loss": loss}} for one, loss in pairs], row, **flags)
    firsts = [one.first for one in answer.records if one.first]
    others = {cause for one in firsts for cause in one.causes} - {*answer.causes}
    notes = {
        ", some rounded": any(one.rounded for one in answer.records),
        ", no gradient is asked for": bool(firsts)
        and not any("loss_gradient" in (one.pattern or "") for one in firsts),
    }
    head = f"{answer.explained} of {answer.differing} explained"
    head += "".join(note for note, holds in notes.items() if holds)
    return [head, *answer.causes, *sorted(f"  {cause}" for cause in others)]


def wrong(digits: int, records: Sequence[dict[str, Any]] = RECORDS, **settings: float) -> list[str]:
    return verdict(records, [loss_of(one, settings, digits) for one in records])


def with_gradient(settings: dict[str, float]) -> list[str]:
    one = RECORDS[0] | {"rewards": [0.1 * reward for reward in RECORDS[0]["rewards"]]}
    made = evaluate(one | {"hyperparameters": OWN | settings}, "grpo")
    expected = {"loss": made.loss, "gradient": made.gradient}
    return [*verify(one | {"expected": expected}, "grpo").causes]


def formula(advantages: Callable[[np.ndarray], np.ndarray], beta: float) -> list[str]:
    records, losses = [], []
    for at, one in enumerate(RECORDS):
        half = (at + 1) % 2
        r = np.array([0, 1, 0, 0, half, half], float)
        own = {"rewards": r.tolist(), "advantages": (r - r.mean()) / (r.std(ddof=1) + 1e-4)}
        records.append(one | own)
        losses.append(loss_of(one | own | {"advantages": advantages(r)}, {"beta": beta}))
    return verdict(records, losses)


def test_records_of_two_mistakes() -> None:
    """Without their KL, some with another ε besides."""
    wrong = [{"beta": 0.0}] * 4 + [{"beta": 0.0, "epsilon_high": 0.28}] * 4
    pairs = zip([*RECORDS, *RECORDS], wrong, strict=True)
    made = [one | {"expected": {"loss": loss_of(one, some)}} for one, some in pairs]
    causes = [row.first.causes for row in verify(made, "grpo").records]
    both = "KL missing (β = 0), and epsilon_high 0.28 instead of 0.2 (-p epsilon_high=0.28)"
    assert causes == [("KL missing (β = 0)",)] * 4 + [(both,)] * 4


def rows_of(one: dict[str, Any]) -> Iterator[tuple[float, Any, Any]]:
    """The sign of A, the ratios, and log π_ref − log π_θ of each response."""
    signs = np.sign(np.array(one["rewards"]) - np.mean(one["rewards"])).tolist()
    columns = (one[f"log_probs_{name}"] for name in ("new", "old", "ref"))
    for sign, new, old, ref in zip(signs, *columns, strict=True):
        yield sign, np.exp(np.subtract(new, old)), np.subtract(ref, new)


def clipped_of_both_signs() -> list[str]:
    made = []
    for one in RECORDS:
        beyond = np.concatenate([abs(ratio - 1.0) > 0.2 for _, ratio, _ in rows_of(one)])
        expected = {"loss": evaluate(one, "grpo").loss, "clip_fraction": float(beyond.mean())}
        made.append(one | {"expected": expected})
    answer = verify(made, "grpo")
    return [f"{answer.explained} of {answer.differing} explained", *answer.causes]


def off_the_rewards(factor: float) -> list[str]:
    losses = []
    for one in RECORDS:
        pairs = zip(one["log_probs_old"], one["log_probs_ref"], strict=True)
        penalties = [factor * OWN["beta"] * np.subtract(*pair).sum() for pair in pairs]
        scored = {"rewards": np.subtract(one["rewards"], penalties), "hyperparameters": {}}
        losses.append(evaluate(one | scored, "rloo", beta=0.0).loss)
    return verdict(RECORDS, losses, "rloo")


def negative_beta(count: int) -> list[str]:
    """The first record has equal rewards, so that its loss is the KL alone."""
    records = [RECORDS[0] | {"rewards": [1.0] * 6}, *RECORDS[1:]][:count]
    totals = [evaluate(one, "grpo").total for one in records]
    return verdict(records, [-(one["policy"] + OWN["beta"] * one["kl"]) for one in totals])


# ---- log-probs that were rounded after the loss was computed -------------------------------------


def rounded_records(places: int, count: int = 8, **setting: Any) -> list[dict[str, Any]]:
    """Records whose losses are of exact log-probs, which then have so many decimals."""
    random = np.random.default_rng(20260301)
    made = []
    for at in range(count):
        old = [-random.gamma(2.0, 0.9, size) for size in random.integers(5, 15, 6)]
        columns = {"log_probs_old": old}
        for name, spread in (("log_probs_new", 0.13), ("log_probs_ref", 0.2)):
            columns[name] = [np.minimum(x + random.normal(0, spread, len(x)), -1e-3) for x in old]
        record: dict[str, Any] = {"id": at, "rewards": [0.0, 0.1, 0.3, 0.3, 0.5, 0.1 * (at % 5)]}
        exact = {name: [part.tolist() for part in parts] for name, parts in columns.items()}
        record["expected"] = {"loss": evaluate(record | exact, "grpo", **setting).loss}
        short = {name: [part.round(places).tolist() for part in x] for name, x in columns.items()}
        made.append(record | short)
    return made


def of_rounded(places: int, times: float = 1.0, **setting: float) -> list[str]:
    records = rounded_records(places, **setting)
    return verdict(records, [times * one["expected"]["loss"] for one in records])


def summed(row: str, length: int) -> list[str]:
    """Sums over tokens, divided by a constant; with that length they agree."""
    records = [{**one, "hyperparameters": {}} for one in RECORDS]
    losses = [
        evaluate(one, row, stages={"aggregate": "token-sum"}).loss / length for one in records
    ]
    own = {"stages": {"aggregate": "token-sum-norm"}, "max_completion_length": length}
    return verdict(records, losses, row) + verdict(records, losses, row, **own)


def advantages_rounded() -> list[str]:
    random, made, losses = np.random.default_rng(5), [], []
    for at in range(6):
        old = [-random.gamma(2.0, 0.9, size) for size in random.integers(200, 400, 6)]
        columns = {"log_probs_old": old}
        for name, spread in (("log_probs_new", 0.13), ("log_probs_ref", 0.4)):
            columns[name] = [np.minimum(x + random.normal(0, spread, len(x)), -1e-3) for x in old]
        rewards = np.array([0.0, 0.1, 0.3, 0.3, 0.5, 0.1 * (at % 5)])
        columns["advantages"] = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
        exact = {name: [part.tolist() for part in parts] for name, parts in columns.items()}
        record = {"rewards": rewards.tolist()}
        loss = evaluate(record | exact, "trl/dapo@1.9.2", beta=0.02).loss
        short = {name: [part.round(6).tolist() for part in x] for name, x in columns.items()}
        made.append(record | short)
        losses.append(loss)
    return verdict(made, losses, "trl/dapo", beta=0.02)


def test_gradients_are_0_at_a_place_only_if_all_of_them_there_are() -> None:
    """Max in the place of min: outside of the range some are 0, and some that have to be are not.

    The others have factors of their own, so that no cause is found.
    """
    one = RECORDS[0]
    new, old = (np.concatenate(one[f"log_probs_{name}"]) for name in ("new", "old"))
    ratio = np.exp(new - old)
    own = np.concatenate(evaluate(one, "dapo", epsilon_high=0.2).gradient)
    outside = (ratio < 0.8) | (ratio > 1.2)
    odd = np.linspace(0.5, 1.7, len(own))
    for silent, words in ((outside & (own == 0.0), ""), (np.zeros_like(outside), "yours are 0")):
        wanted = np.where(outside, np.where(silent, 0.01, 0.0), odd * own)
        cuts = np.cumsum([len(row) for row in one["log_probs_new"]])[:-1]
        wanted = [row.tolist() for row in np.split(wanted, cuts)]
        answer = verify(one | {"expected": {"gradient": wanted}}, "dapo", epsilon_high=0.2)
        assert words in answer.records[0].first.pattern
        assert bool(words) == ("yours are 0" in answer.records[0].first.pattern)


def test_causes_of_losses() -> None:
    expressions(Path(__file__).parent / "cases/verify/losses.txt", globals())
