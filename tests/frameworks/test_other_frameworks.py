"""Frameworks from their sources: one fixture and one set of rewards, their numbers.

The expected numbers are what the frameworks' own functions returned when executed in float64 with
torch at OpenRLHF 3c3be62, slime 624b824, NeMo-RL 7ea279a, AReaL 4aef98d, prime-rl 559b447 and
open-instruct e6c3044, to six digits. Tinker's are of its documented formulas, worked out apart from
this program.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import expressions
from mpmath import mp, mpf
from rows import STAGES

from grpo_cli import VARIANTS, InputError, evaluate

RATIOS = [[1.5, 0.9], [0.7, 1.1, 1.3, 4.0]]
ENGINE = [[1.0, 3.0], [0.4, 1.0, 1.2, 0.9]]
RECORD = {
    "log_probs_old": [[-2.0, -2.0], [-2.0, -2.0, -2.0, -2.0]],
    "log_probs_new": [[-2.0 + math.log(r) for r in row] for row in RATIOS],
    "log_probs_rollout": [[-2.0 - math.log(r) for r in row] for row in ENGINE],
    "log_probs_ref": [[-1.9, -2.3], [-2.5, -1.6, -2.0, -2.2]],
    "advantages": [1.0, -1.0],
}
"""π_θ/π_old and π_old/π_rollout are RATIOS and ENGINE; one response is good, one bad."""


def test_every_row_states_its_version() -> None:
    frameworks = (
        *("openrlhf/", "slime/", "nemo-rl/", "areal/", "prime-rl/", "open-instruct/"),
        *("tinker/",),
    )
    rows = {name: row for name, row in VARIANTS.items() if name.startswith(frameworks)}
    assert len(rows) >= 30
    assert all(row.version and row.checked != "paper" for row in rows.values())


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name.startswith("tinker/")])
def test_tinker_gradient(variant: str) -> None:
    # the others' gradients are compared with autograd's; Tinker's losses run on its server only
    gradient = evaluate(RECORD, variant).gradient
    step = 1e-6
    for response, row in enumerate(RECORD["log_probs_new"]):
        for token in range(len(row)):
            losses = []
            for sign in (1.0, -1.0):
                moved = [list(one) for one in RECORD["log_probs_new"]]
                moved[response][token] += sign * step
                losses.append(weighed(variant, moved))
            slope = -(losses[0] - losses[1]) / (2.0 * step)
            assert gradient[response][token] == pytest.approx(slope, rel=1e-6, abs=1e-8)


def weighed(variant: str, new: list[list[float]]) -> float:
    """The loss as autograd sees it: CISPO's weight is a constant."""
    found = evaluate({**RECORD, "log_probs_new": new}, variant).loss
    if variant != "tinker/cispo":
        return found
    weights = evaluate(RECORD, variant).breakdown.surrogate / RECORD_NEW
    return -float((weights * np.concatenate([*map(np.array, new)])).sum())


RECORD_NEW = np.concatenate([*map(np.array, RECORD["log_probs_new"])])


def advantages(
    variant: str, rewards: Any, advantage: str | None = None, **values: Any
) -> list[float]:
    """One advantage per token, of responses of one token unless log-probs are given."""
    tokens = values.pop("tokens", [[-1.0]] * len(rewards))
    record = {"log_probs_new": tokens, "log_probs_ref": tokens, "rewards": rewards}
    record |= values.pop("record", {})
    stages = {"correction": "none", "ratio": "token"}
    stages |= {} if advantage is None else {"advantage": advantage}
    surrogate = {"surrogate": "unclipped", "aggregate": "sum"}
    found = evaluate(record, variant, stages={**stages, **surrogate}, **values)
    return [x for row in found.advantages for x in row.tolist()]


@pytest.mark.parametrize("count", [2, 300, 2100])
@pytest.mark.parametrize("rewards", ["few values", "all different"])
def test_nemo_compares_each_of_a_large_group_with_the_others(count, rewards) -> None:
    """By the definition, in 50 digits; with an offset that must cost none."""
    of_few = rewards == "few values"
    values = [1e6 + (at * 7919 % 13 % 3 if of_few else at * 7919 % 4001 / 7) for at in range(count)]
    found = advantages("nemo-rl/grpo", values)
    with mp.workdps(50):
        total, squares = sum(map(mpf, values)), sum(mpf(one) ** 2 for one in values)
        others = count - 1
        for at in range(0, count, 1 + count // 9):
            own = mpf(values[at])
            mean = (total - own) / others
            spread = mp.sqrt(abs(squares - own**2 - others * mean**2) / max(others - 1, 1))
            expected = (own - mean) / (spread + mpf("1e-6")) if spread > 1e-9 else own - mean
            assert found[at] == pytest.approx(float(expected), rel=1e-13)


def flat(
    new: list[float], old: list[float], advantages: list[float], **more: Any
) -> dict[str, Any]:
    """One response with an advantage per token."""
    record = {"log_probs_new": [new], "log_probs_old": [old], "advantages": [advantages]}
    return record | {name: [values] for name, values in more.items()}


def rows(prefix: str) -> list[str]:
    return [name for name in VARIANTS if name.startswith(prefix)]


def loss(variant: str, **how: Any) -> float:
    """Of the fixture; names of stages are told from the others."""
    stages = {name: how.pop(name) for name in [*how] if name in STAGES}
    return float(evaluate(RECORD, variant, stages=stages, **how).loss)


def near(found: Any, wanted: Any, **most: float) -> str:
    """Whether they are."""
    return "same" if found == pytest.approx(wanted, **most) else f"{found}, not {wanted}"


def error(run: Callable[[], object]) -> str:
    with pytest.raises(InputError) as raised:
        run()
    return str(raised.value)


def test_numbers_of_the_frameworks() -> None:
    text = Path(__file__).with_name("other_frameworks.txt")
    expressions(text, dict(globals()), by_hand=True)
