"""What the frameworks' own functions returned, loss and gradient, on ragged batches.

tests/golden/others.json was written by tests/parity/others/write.py, which runs them in float64
at the commits that it states; no number in it is of this program.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_readme
from files import each

from grpo_cli import VARIANTS, evaluate
from grpo_cli.variants import EARLIER

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "others.json").read_bytes())
CASES: list[dict[str, Any]] = GOLDEN["cases"]
EPSILON = 2e-8
"""NeMo-RL adds 1e-8 to the counts that its means divide by; we to that of its ratio alone."""


def identity(case: dict[str, Any]) -> str:
    swapped = [*case["stages"].values(), *(f"{k}={v}" for k, v in case["hyperparameters"].items())]
    framework = case["framework"]
    release = GOLDEN["commits"].get(framework, framework)
    return " ".join([case["variant"], release, *swapped, case["batch"]])


@dataclass(frozen=True)
class Evaluated:
    """What is compared of an evaluation."""

    loss: float
    gradient: list[np.ndarray]
    advantages: list[np.ndarray]


EVALUATED: dict[str, Evaluated] = {}
"""What a case gave: three tests look at it."""


def evaluated(golden: dict[str, Any], case: dict[str, Any]) -> Evaluated:
    asked = (case["variant"], case["stages"], case["hyperparameters"])
    key = repr((id(golden), case["batch"], *asked))
    if key not in EVALUATED:
        record = golden["batches"][case["batch"]]
        found = evaluate(record, asked[0], stages=asked[1], **asked[2])
        EVALUATED[key] = Evaluated(found.loss, found.gradient, found.advantages)
    return EVALUATED[key]


def compare(golden: dict[str, Any], case: dict[str, Any], epsilon: float, floor: float) -> None:
    """Loss and gradient of a case; the floor is relative to the greatest slope."""
    found = evaluated(golden, case)
    assert found.loss == pytest.approx(case["loss"], rel=epsilon, abs=1e-12), identity(case)
    ours, theirs = (np.concatenate([*map(np.array, x)]) for x in (found.gradient, case["gradient"]))
    floor *= np.abs(theirs).max()
    np.testing.assert_allclose(ours, theirs, rtol=epsilon, atol=floor, err_msg=identity(case))


def compare_advantages(golden: dict[str, Any], case: dict[str, Any], epsilon: float) -> None:
    """The advantages of a case, token by token."""
    found = evaluated(golden, case)
    ours = np.concatenate(found.advantages)
    theirs = np.concatenate([*map(np.array, case["advantages"])])
    np.testing.assert_allclose(ours, theirs, rtol=epsilon, atol=epsilon, err_msg=identity(case))


@each("variant", dict.fromkeys(case["variant"] for case in CASES))
def test_loss_and_gradient(variant: str) -> None:
    """Every case of a row; what fails is told by ``identity``."""
    for case in CASES:
        if case["variant"] == variant:
            compare(GOLDEN, case, EPSILON, floor=1e-9)


@each("case", GOLDEN["advantages"], ids=identity)
def test_advantages(case: dict[str, Any]) -> None:
    compare_advantages(GOLDEN, case, EPSILON)


def test_the_parity_table_is_the_parity_run_s() -> None:
    """``grpo help checked`` states the errors of these cases."""
    stated = test_readme.marked((test_readme.PAGES / "checked.md").read_text("utf-8"), "parity")
    measured = test_readme.parity_report().others(GOLDEN, evaluated)
    assert stated == test_readme.parity_table(measured)


RAN = {
    case["variant"]
    for case in (*CASES, *GOLDEN["advantages"])
    if not case["variant"].startswith("tinker/")  # whose losses run on its servers alone
    and (not case["variant"].startswith("trl/") or "@" in case["variant"])  # of another's loss
}
"""The rows whose framework's own loss or advantage ran."""


def test_rows_state_the_commits_that_ran() -> None:
    commits = set(GOLDEN["commits"].values())
    for variant in (name for name in RAN if "/" in name):  # papers have no version
        row = VARIANTS[variant]
        assert row.version in commits or commits & set(row.version.split())
        assert row.checked == "executed"


def test_rows_that_claim_to_have_run_did() -> None:
    elsewhere = ("trl/", "verl/")  # tests/parity runs them
    claimed = {
        name
        for name, row in {**VARIANTS, **EARLIER}.items()
        if row.checked == "executed" and not (name.startswith(elsewhere) and "@" not in name)
    }
    assert {name for name in claimed if "/" in name} == {name for name in RAN if "/" in name}
