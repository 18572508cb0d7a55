"""The rows of variants/trl.py against what TRL 1.16.0 itself computed.

tests/golden/trl.json was written by TRL (its ``functions`` and ``how`` say so), not by us.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from files import each

from grpo_cli import evaluate

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "trl.json").read_text())
CASES = GOLDEN["cases"]


def named(case):
    return " ".join([case["variant"], *case["stages"].values(), *map(str, case["hyperparameters"])])


def evaluated(case):
    record, variant = case["record"], case["variant"]
    return evaluate(record, variant, stages=case["stages"], **case["hyperparameters"])


@each("case", CASES, ids=named)
def test_loss(case):
    assert evaluated(case).loss == pytest.approx(case["loss"], rel=1e-12, abs=0.0)


@each("case", CASES, ids=named)
def test_gradient(case):
    ours = np.concatenate(evaluated(case).gradient)
    theirs = np.array([value for row in case["loss_gradient"] for value in row])
    np.testing.assert_allclose(-ours, theirs, rtol=1e-10, atol=1e-15 * np.abs(theirs).max())


@each("case", [c for c in CASES if "kl" in c["metrics"]])
def test_kl(case):
    kl = evaluated(case).breakdown.kl
    assert kl.mean() == pytest.approx(case["metrics"]["kl"], rel=1e-12)


TOKEN_LEVEL = [
    case
    for case in CASES
    if "clip_ratio/low_mean" in case["metrics"]
    and case["variant"] not in ("trl/gspo", "trl/luspo", "trl/rloo")
]


@each("case", TOKEN_LEVEL)
def test_clip_fractions(case):
    clip = evaluated(case).breakdown.clip
    ours = [np.mean(clip < 0), np.mean(clip > 0)]
    theirs = [case["metrics"][f"clip_ratio/{side}_mean"] for side in ("low", "high")]
    assert ours == pytest.approx(theirs, rel=1e-6)  # TRL's are in single precision


def test_the_cases_are_of_the_version_that_the_rows_name():
    assert GOLDEN["framework"] == "trl 1.16.0"
    assert len({case["variant"] for case in CASES}) == 11
