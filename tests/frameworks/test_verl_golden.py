"""verl's rollout corrections, GAE, ReMax and optimal token baselines against its own numbers.

tests/golden/verl_rollout.json and verl_baselines.json hold what verl 0.9.1 returned in float64.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import each

from grpo_cli import VARIANTS, GrpoError, InputError, evaluate

FOLDER = Path(__file__).parent.parent / "golden"
GOLDEN = json.loads((FOLDER / "verl_rollout.json").read_text())
CASES: list[dict[str, Any]] = GOLDEN["cases"]
BASELINES: list[dict[str, Any]] = json.loads((FOLDER / "verl_baselines.json").read_text())["cases"]
ROWS = {name for name in VARIANTS if name.startswith(("verl/decoupled", "verl/bypass"))}


def identity(case: dict[str, Any]) -> str:
    return f"{case['variant']} {case['record']['hyperparameters'].get('rollout_rs', '')}"


@each("case", CASES, ids=identity)
def test_loss_and_gradient(case: dict[str, Any]) -> None:
    found = evaluate(case["record"], case["variant"])
    assert found.loss == pytest.approx(case["loss"], rel=1e-9)
    ours, theirs = (np.concatenate([*map(np.array, x)]) for x in (found.gradient, case["gradient"]))
    np.testing.assert_allclose(-ours, theirs, rtol=1e-9, atol=1e-15)


def test_every_row_has_golden_numbers() -> None:
    assert {case["variant"] for case in CASES} == ROWS
    assert {VARIANTS[name].version for name in ROWS} == {f"verl {GOLDEN['version']}"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rollout_rs": "token_k4"}, "rollout_rs: expected one of token_k1"),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": None}, "expected 1 threshold"),
        ({"rollout_rs": "token_k2", "rollout_rs_threshold": "0.5_2"}, "one upper bound"),
        (
            {"rollout_rs": "token_k2,seq_mean_k2,seq_max_k3", "rollout_rs_threshold": "1,2"},
            "expected 1 threshold, or 3",
        ),
        ({"rollout_is_threshold": "two"}, "LOW_HIGH, got 'two'"),
        ({"rollout_is": "response"}, "one of token, sequence"),
    ],
)
def test_settings_that_verl_refuses_too(given: dict[str, Any], message: str) -> None:
    record = CASES[0]["record"] | {"hyperparameters": given}
    with pytest.raises(GrpoError, match=message):
        evaluate(record, "verl/decoupled_geo_rs")


MISSING = {
    "verl/gae": ("values", "a critic's value of each token"),
    "verl/remax": ("reward_baselines", "the reward of a greedy response"),
    "verl/optimal_token_baseline": ("sum_pi_squared", "the squared probabilities"),
}


@pytest.mark.parametrize(
    "case",
    BASELINES,
    ids=[f"{at} {case['stages']['advantage']}" for at, case in enumerate(BASELINES)],
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
    record = {key: value for key, value in BASELINES[0]["record"].items() if key != column}
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
