"""What eight frameworks' own functions returned, loss and gradient, on four ragged batches.

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
from grpo_cli.variants import EARLIER

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "others.json").read_bytes())
CASES: list[dict[str, Any]] = GOLDEN["cases"]
EPSILON = 2e-8
"""NeMo-RL adds 1e-8 to the counts that its means divide by; we to that of its ratio alone."""


def identity(case: dict[str, Any]) -> str:
    swapped = [*case["stages"].values(), *(f"{k}={v}" for k, v in case["hyperparameters"].items())]
    return " ".join([case["variant"], *swapped, case["batch"]])


@pytest.mark.parametrize("case", CASES, ids=identity)
def test_loss_and_gradient(case: dict[str, Any]) -> None:
    record = GOLDEN["batches"][case["batch"]]
    found = evaluate(record, case["variant"], stages=case["stages"], **case["hyperparameters"])
    assert found.loss == pytest.approx(case["loss"], rel=EPSILON, abs=1e-12)
    ours, theirs = (np.concatenate([*map(np.array, x)]) for x in (found.gradient, case["gradient"]))
    scale = np.abs(theirs).max()
    np.testing.assert_allclose(ours, theirs, rtol=EPSILON, atol=1e-9 * scale)


@pytest.mark.parametrize("case", GOLDEN["advantages"], ids=identity)
def test_advantages(case: dict[str, Any]) -> None:
    record = GOLDEN["batches"][case["batch"]]
    values, stages = case["hyperparameters"], case["stages"]
    found = evaluate(record, case["variant"], stages=stages, **values)
    ours = np.concatenate(found.advantages)
    theirs = np.concatenate([*map(np.array, case["advantages"])])
    np.testing.assert_allclose(ours, theirs, rtol=EPSILON, atol=EPSILON)


RAN = {case["variant"] for case in CASES} | {case["variant"] for case in GOLDEN["advantages"]}


def test_rows_state_the_commits_that_ran() -> None:
    commits = dict.fromkeys(GOLDEN["commits"].values())
    for variant in (name for name in RAN if "/" in name):  # papers have no version
        row = VARIANTS[variant]
        assert row.version in commits or row.version.split()[0] in commits
        assert row.checked == "executed"


def test_rows_that_claim_to_have_run_did() -> None:
    own = {name.partition("/")[0] for name in RAN if "/" in name and "@" not in name}
    rows = [(n, row) for n, row in VARIANTS.items() if n.partition("/")[0] in own]
    assert {n for n, row in (*rows, *EARLIER.items()) if row.checked == "executed"} == {
        name for name in RAN if "/" in name
    }
