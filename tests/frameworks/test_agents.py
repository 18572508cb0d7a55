"""Agents of several turns against frameworks' executed numbers (tests/parity/agents.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import each

from grpo_cli import evaluate

KEPT = json.loads((Path(__file__).parents[1] / "golden" / "agents.json").read_text())
CASES = {
    f"{case['source']} {case['function']} {number}": case
    for cases in KEPT.values()
    for number, case in enumerate(cases)
}


def record_of(columns: dict[str, Any]) -> dict[str, Any]:
    """The columns by response; what is by turn has as many numbers as a row has turns."""
    named = {key: np.array(value) for key, value in columns.items() if value is not None}
    ends = np.cumsum(named.pop("lengths"))[:-1]
    rows = np.split(named["turn_ids"], ends)
    turns = np.cumsum([len(np.unique(row)) for row in rows])
    record = {"group_ids": named.pop("groups"), "rewards": named.pop("rewards")}
    if "trajectories" in named:
        record["trajectory_ids"] = named.pop("trajectories")
    if "reward_baselines" in named:
        record["reward_baselines"] = named.pop("reward_baselines")
    for key in ("turn_rewards", "state_ids"):
        value = named.pop(key, np.zeros(0))
        if len(value) == turns[-1]:  # MT-GRPO knows no states
            record[key] = np.split(value, turns[:-1])
    record |= {key: np.split(value, ends) for key, value in named.items()}
    return {
        key: [row.tolist() for row in value] if isinstance(value, list) else value.tolist()
        for key, value in record.items()
    }


@each("name", list(CASES))
def test_frameworks_numbers(name: str) -> None:
    case = CASES[name]
    stages, values = {"kl": "none"} | case.get("stages", {}), case.get("hyperparameters", {})
    found = evaluate(record_of(case["batch"]), case.get("variant", "dr"), stages=stages, **values)
    advantages, gradient = map(np.concatenate, (found.advantages, found.gradient))
    assert advantages == pytest.approx(case["advantages"], rel=1e-9, abs=1e-12)
    assert found.loss == pytest.approx(case["loss"], rel=1e-9, abs=1e-12)
    assert gradient == pytest.approx(case["gradient"], rel=1e-9, abs=1e-12)


def test_every_source_ran() -> None:
    assert len(KEPT) == 10
    assert all(KEPT.values())
