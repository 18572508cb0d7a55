"""Agents of several turns against frameworks' executed numbers (tests/parity/agents.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import each

from grpo_cli.batch import Batch, Segments
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.pipeline import evaluate
from grpo_cli.variants.plan import plan

KEPT = json.loads((Path(__file__).parents[1] / "golden" / "agents.json").read_text())
CASES = {
    f"{case['source']} {case['function']} {number}": case
    for cases in KEPT.values()
    for number, case in enumerate(cases)
}


def batch_of(columns: dict[str, Any]) -> Batch:
    named = {key: None if value is None else np.array(value) for key, value in columns.items()}
    lengths, groups = named.pop("lengths"), named.pop("groups")
    trajectories = named["trajectories"]
    return Batch(
        responses=Segments(lengths),
        records=Segments(np.array([len(lengths)])),
        groups=groups,
        group_count=int(groups.max()) + 1,
        trajectory_count=0 if trajectories is None else int(trajectories.max()) + 1,
        **named,
    )


def ours(case: dict[str, Any]) -> Breakdown:
    stages = {"kl": "none"} | case.get("stages", {})
    values = case.get("hyperparameters", {})
    made = plan(case.get("variant", "dr"), stages=stages, hyperparameters=values)
    return evaluate(batch_of(case["batch"]), made.objective({}, advantages_given=False))


@each("name", list(CASES))
def test_frameworks_numbers(name: str) -> None:
    case = CASES[name]
    found = ours(case)
    assert found.advantage == pytest.approx(case["advantages"], rel=1e-9, abs=1e-12)
    assert -found.record_objective[0] == pytest.approx(case["loss"], rel=1e-9, abs=1e-12)
    assert found.gradient == pytest.approx(case["gradient"], rel=1e-9, abs=1e-12)


def test_every_source_ran() -> None:
    assert len(KEPT) == 10
    assert all(KEPT.values())
