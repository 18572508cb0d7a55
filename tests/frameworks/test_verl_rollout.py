"""verl's rollout corrections against numbers that verl 0.9.1 itself computed.

tests/golden/verl_rollout.json holds what verl's functions returned in float64.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo_cli import VARIANTS, GrpoError, evaluate

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "verl_rollout.json").read_text())
CASES: list[dict[str, Any]] = GOLDEN["cases"]
ROWS = {name for name in VARIANTS if name.startswith(("verl/decoupled", "verl/bypass"))}


def identity(case: dict[str, Any]) -> str:
    return f"{case['variant']} {case['record']['hyperparameters'].get('rollout_rs', '')}"


@pytest.mark.parametrize("case", CASES, ids=identity)
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
