"""What the code that goes with papers returned, loss and gradient, on four ragged batches.

tests/golden/authors.json was written by tests/parity/authors/write.py, which runs it in float64
at the commits that it states; no number in it is of this program.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import each

from grpo_cli import evaluate

from .test_others_golden import compare, compare_advantages, identity

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "authors.json").read_bytes())
EPSILON = 1e-9
"""Their token mean adds 1e-8 to the count of tokens; the sums are of some ten to hundred tokens."""


@each("case", GOLDEN["cases"], ids=identity)
def test_loss_and_gradient(case: dict[str, Any]) -> None:
    compare(GOLDEN, case, EPSILON, floor=1e-12)


@pytest.mark.parametrize("case", GOLDEN["advantages"], ids=identity)
def test_advantages(case: dict[str, Any]) -> None:
    compare_advantages(GOLDEN, case, 1e-12)


def test_the_bounds_of_bapo_went_every_way() -> None:
    """Some cases balance at once, some on the way, some at the end of the ranges."""
    losses = {(case["batch"], case["hyperparameters"]["bapo_low_max"]): set() for case in _bapo()}
    for case in _bapo():
        losses[case["batch"], case["hyperparameters"]["bapo_low_max"]].add(case["loss"])
    assert max(len(found) for found in losses.values()) >= 4


def test_kl_cov_holds_back_the_share_of_the_authors_script() -> None:
    """recipe/dapo/32b_kl_cov.sh of PRIME-RL/Entropy-Mechanism-of-RL 8850579: k_percent=0.02."""
    draw = np.random.default_rng(3)
    old = -draw.uniform(1.0, 2.0, size=10_000)
    new = old + draw.normal(scale=0.1, size=10_000)
    record = {
        "log_probs_new": [new],
        "log_probs_old": [old],
        "advantages": [draw.normal(size=10_000)],
    }
    found = evaluate(record, "kl-cov")
    moved = found.surrogate[0] != found.ratio[0] * found.advantage[0]
    assert moved.sum() == 0.02 / 100 * 10_000


def _bapo() -> list[dict[str, Any]]:
    return [case for case in GOLDEN["cases"] if case["variant"] == "bapo"]
