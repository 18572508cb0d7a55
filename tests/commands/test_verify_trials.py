"""Wrong implementations of TRL's loss, written down independently: each is named for what it is.

The records, the wrong losses and gradients, and the words that count as right are those of the
experiment in tests/benchmarks, whose right losses agree (answers.py).
"""

from __future__ import annotations

import numpy as np
import pytest
from files import each, some
from trials import verify
from trials.product import ask
from trials.score import Task
from trials.trl import data, evaluate, expected, simulated
from trials.wrong.catalogue import EXPECTATIONS, MISTAKES

pytestmark = pytest.mark.more

SEEDS = (0, 1, 2, 3)
SOLVED = ("a cap of 1.4 where A < 0", "log ratio bounded at 0.3", "k3 bounded at 0.02")
SILENT = ("one token dropped", "one token doubled")
"""Of tokens without a gradient: the loss alone shows them, and fits others too."""
NAMED = [one for one in MISTAKES if one.name not in SOLVED + SILENT]
"""Verify solves for no bound of another kind than the loss has."""


@each("mistake", some(NAMED, 14), ids=lambda mistake: mistake.name)
def test_a_wrong_implementation_is_named(mistake) -> None:
    """In a real record or a simulated one: the first seed of building that can show it."""
    asked = (verify.ask_one(Task("verify", f"wrong/{mistake.name}", seed)) for seed in SEEDS)
    counts = next(one for one in asked if one)
    cases = [case for count in counts.values() for case in count.cases]
    assert counts[verify.RIGHT].hits == 1, cases
    assert counts[verify.MISLEADING].hits == 0, cases
    assert counts[verify.STAGE].hits == 1


@pytest.mark.parametrize("name", some([*EXPECTATIONS], 2))
@pytest.mark.parametrize("seed", some(SEEDS[:2], 1))
def test_what_else_may_be_expected(name: str, seed: int) -> None:
    counts = verify.ask_one(Task("verify", f"expected/{name}", seed))
    assert all(count.hits == count.of == 1 for count in counts.values())


@pytest.mark.parametrize("seed", [121, 139])
def test_nearly_equal_rewards_in_float32_agree(seed: int) -> None:
    """Rewards of 0.98 to 0.99 whose std is 0.005: float32 leaves 1e-5 of the scale."""
    random = np.random.default_rng(seed)
    record = simulated(random, rewarded=True)
    record["rewards"] = (0.985 + 0.005 * random.uniform(-1, 1, len(record["rewards"]))).tolist()
    seen = data(record)
    record["expected"] = expected(seen, *evaluate(seen))
    assert ask("verify", [record]).code == 0
