"""Whole configurations, drawn at random, of NeMo-RL, OpenRLHF, SkyRL and slime, as they ran.

Single options agreed where combinations did not. The numbers are the frameworks' own, executed;
slime's settings are read as a record says them, the others' are stages and hyperparameters.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import each
from rows import choose, completed

from grpo_cli import evaluate
from grpo_cli.api import Evaluated

GOLDEN = Path(__file__).parent.parent / "golden" / "configurations.json"
CASES = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]


def _evaluated(case: dict[str, Any]) -> Evaluated:
    record = case["record"]
    if "framework" not in record:
        return evaluate(record, case["variant"], stages=case["stages"], **case["hyperparameters"])
    chosen = choose(record["framework"])
    made = completed(chosen, advantages_given=False, stages={}, hyperparameters={})
    return evaluate(record, chosen.row, stages=made.swapped, **made.flags)


@each("case", range(len(CASES)))
def test_loss_and_gradient_are_the_framework_s(case: int) -> None:
    expected = CASES[case]
    found = _evaluated(expected)
    gradient = np.concatenate(found.gradient)
    largest = np.abs(expected["gradient"]).max()
    room = 1e-10 * float(np.abs(np.concatenate(found.contribution)).sum())
    assert found.loss == pytest.approx(expected["loss"], rel=1e-10, abs=room)
    assert gradient == pytest.approx(np.array(expected["gradient"]), abs=1e-9 * largest)
