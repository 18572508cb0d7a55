"""What six frameworks' own functions returned, loss and gradient, on four ragged batches.

tests/golden/others.json was written by tests/parity/others/write.py, which runs them in float64
at the commits that it states; no number in it is of this program.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo_cli import VARIANTS, evaluate

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "others.json").read_bytes())
CASES: list[dict[str, Any]] = GOLDEN["cases"]
EPSILON = 1e-7
"""OpenRLHF and NeMo-RL add 1e-8 to the counts that they divide by; we do not."""


def identity(case: dict[str, Any]) -> str:
    swapped = [*case["stages"].values(), *(f"{k}={v}" for k, v in case["hyperparameters"].items())]
    return " ".join([case["variant"], *swapped, case["batch"]])


def compare(golden: dict[str, Any], case: dict[str, Any], epsilon: float, floor: float) -> None:
    """Loss and gradient of a case; the floor is relative to the greatest slope."""
    record = golden["batches"][case["batch"]]
    found = evaluate(record, case["variant"], stages=case["stages"], **case["hyperparameters"])
    assert found.loss == pytest.approx(case["loss"], rel=epsilon, abs=1e-12)
    ours, theirs = (np.concatenate([*map(np.array, x)]) for x in (found.gradient, case["gradient"]))
    np.testing.assert_allclose(ours, theirs, rtol=epsilon, atol=floor * np.abs(theirs).max())


def compare_advantages(golden: dict[str, Any], case: dict[str, Any], epsilon: float) -> None:
    """The advantages of a case, token by token."""
    record = golden["batches"][case["batch"]]
    found = evaluate(record, case["variant"], stages=case["stages"], **case["hyperparameters"])
    ours = np.concatenate(found.advantages)
    theirs = np.concatenate([*map(np.array, case["advantages"])])
    np.testing.assert_allclose(ours, theirs, rtol=epsilon, atol=epsilon)


@pytest.mark.parametrize("case", CASES, ids=identity)
def test_loss_and_gradient(case: dict[str, Any]) -> None:
    compare(GOLDEN, case, EPSILON, floor=1e-9)


@pytest.mark.parametrize("case", GOLDEN["advantages"], ids=identity)
def test_advantages(case: dict[str, Any]) -> None:
    compare_advantages(GOLDEN, case, EPSILON)


def test_rows_state_the_commits_that_ran() -> None:
    commits = dict.fromkeys(GOLDEN["commits"].values())
    ran = {case["variant"] for case in CASES} | {case["variant"] for case in GOLDEN["advantages"]}
    for variant in ran:
        assert VARIANTS[variant].version.split()[0] in commits
        assert VARIANTS[variant].checked == "executed"


def test_rows_that_claim_to_have_run_did() -> None:
    ran = {case["variant"] for case in CASES} | {case["variant"] for case in GOLDEN["advantages"]}
    prefixes = ("openrlhf/", "slime/", "nemo-rl/", "areal/", "prime-rl/", "open-instruct/")
    claimed = {n for n, row in VARIANTS.items() if row.checked == "executed"}
    assert {name for name in claimed if name.startswith(prefixes)} == ran
