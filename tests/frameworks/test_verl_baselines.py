"""verl's GAE, ReMax and optimal token baselines against numbers that verl 0.9.1 itself computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo_cli import InputError, evaluate

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "verl_baselines.json").read_text())
CASES: list[dict[str, Any]] = GOLDEN["cases"]
MISSING = {
    "verl/gae": ("values", "a critic's value of each token"),
    "verl/remax": ("reward_baselines", "the reward of a greedy response"),
    "verl/optimal_token_baseline": ("sum_pi_squared", "the squared probabilities"),
}


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{at} {case['stages']['advantage']}" for at, case in enumerate(CASES)]
)
def test_advantages(case: dict[str, Any]) -> None:
    found = evaluate(case["record"], "verl/vanilla", stages=case["stages"])
    ours, theirs = (
        np.concatenate([*map(np.array, x)]) for x in (found.advantages, case["advantages"])
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("choice", MISSING)
def test_a_missing_column_is_named(choice: str) -> None:
    column, words = MISSING[choice]
    record = {key: value for key, value in CASES[0]["record"].items() if key != column}
    with pytest.raises(InputError, match=words) as caught:
        evaluate(record, "verl/vanilla", stages={"advantage": choice})
    assert caught.value.path == column


def test_neutral_gae_is_the_recursion() -> None:
    record = {
        "log_probs": [[-1.0, -1.0, -1.0], [-1.0]],
        "values": [[0.5, 0.25, 1.0], [0.75]],
        "rewards": [2.0, 1.0],
        "hyperparameters": {"gamma": 0.5, "gae_lambda": 0.5},
    }
    found = evaluate(record, "grpo", stages={"advantage": "gae"}, beta=0.0)
    # δ = 0.5·0.25 − 0.5, 0.5·1 − 0.25, 2 − 1 and 1 − 0.75; A = δ + 0.25·A of the next
    wanted = [-0.375 + 0.25 * (0.25 + 0.25 * 1.0), 0.25 + 0.25 * 1.0, 1.0, 0.25]
    np.testing.assert_allclose(np.concatenate(found.advantages), wanted, rtol=1e-15)
