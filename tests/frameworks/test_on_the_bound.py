"""What lies on a bound is kept, in every framework that drops tokens; what is beyond it is not.

As their sources compare: SkyRL a9564572, ROLL 8eb27cc2, OpenRLHF 0.11.2, NeMo-RL 7ea279a, AReaL
cbff54d, open-instruct e6c3044, prime-rl 559b447, verl 0.9.1, TRL 1.16.0 and ms-swift 4.6.0.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import each

from grpo_cli import evaluate

RECORD = {
    name: [[-1.0, -0.5, -2.0], [-0.25]]
    for name in ("log_probs_new", "log_probs_old", "log_probs_rollout", "log_probs_ref")
} | {"advantages": [1.0, -1.0]}
"""Where all agree: every ratio is exactly 1, every difference and divergence exactly 0."""
CASES = json.loads(Path(__file__).with_name("bounds.json").read_bytes())
"""On a bound: a choice, the names of its bounds, what is to lie on them, what else it takes. Far: a
choice and the bound of its log ratio, as its source has it; of TRL there is none, its cap comes
after."""


def kept(name: str, values: dict[str, Any]) -> list[float]:
    found: list[float] = (
        evaluate(RECORD, "dr", stages={"correction": name}, **values)
        .columns()["correction"]
        .tolist()
    )
    return found


@each(("name", "low", "high", "at", "more"), CASES["on a bound"])
def test_a_token_on_a_bound(
    name: str, low: str | None, high: str, at: float, more: dict[str, Any]
) -> None:
    bounds = {high: at} | ({} if low is None else {low: at})
    assert kept(name, more | bounds) == [1.0] * 4
    above = float(np.nextafter(at, math.inf))
    if low is not None:
        assert kept(name, more | {low: above, high: above + 1.0}) == [0.0] * 4
    if at > 0.0:
        below = float(np.nextafter(at, 0.0))
        wider = {} if low is None else {low: 0.5}
        assert kept(name, more | wider | {high: below}) == [0.0] * 4


@each(("name", "values"), CASES["within a bound of none"])
def test_no_distance_is_within_a_bound_of_none(name: str, values: dict[str, Any]) -> None:
    assert kept(name, values) == [1.0] * 4


@each(("name", "values"), CASES["surrogates"])
def test_a_surrogate_drops_what_moved_and_nothing_else(name: str, values: dict[str, Any]) -> None:
    found = evaluate(RECORD, "dr", stages={"surrogate": name}, **values).breakdown
    assert found.surrogate.tolist() == [1.0, 1.0, 1.0, -1.0]
    assert not found.clip.any()


MOST = math.exp(22.0)


@each(("name", "values", "bound"), CASES["far"])
@each("sign", [1.0, -1.0])
def test_ratios_are_bounded_before_they_are_weights(
    name: str, values: dict[str, Any], bound: float, sign: float
) -> None:
    values = {key: MOST if value == "MOST" else value for key, value in values.items()}
    near, far = ([[-1.0]], [[-24.0]])
    old, rollout = (near, far) if sign > 0 else (far, near)
    record = {"log_probs_new": old, "log_probs_old": old, "log_probs_rollout": rollout}
    record |= {"advantages": [1.0]}
    (weight,) = evaluate(record, "dr", stages={"correction": name}, **values).correction[0]
    assert weight == pytest.approx(min(math.exp(sign * bound), MOST), rel=1e-12)


def test_what_verl_rejects_by_is_bounded() -> None:
    """d²/2 of a token 23 nats away is 200."""
    record = {"log_probs_new": [[-1.0]], "log_probs_rollout": [[-24.0]], "advantages": [1.0]}
    values: dict[str, Any] = {"rollout_is": None, "rollout_rs": "token_k2"}
    for bound, weight in (("200", 1.0), ("199.9", 0.0)):
        values["rollout_rs_threshold"] = bound
        found = evaluate(record, "dr", stages={"correction": "verl/decoupled"}, **values)
        assert found.correction[0].tolist() == [weight]


@pytest.mark.parametrize("name", ["skyrl/dppo_tv", "skyrl/dppo_kl"])
def test_skyrl_bounds_the_ratio_of_its_surrogates(name: str) -> None:
    bounds: dict[str, Any] = {"divergence_low": 1.0, "divergence_high": 1.0}
    for new, value in ((-1.0, math.exp(20.0)), (-5.0, math.exp(19.0))):
        record = {"log_probs_new": [[new]], "log_probs_rollout": [[-24.0]], "advantages": [-1.0]}
        found = evaluate(record, "dr", stages={"surrogate": name}, **bounds).breakdown
        assert -found.surrogate[0] == pytest.approx(value, rel=1e-12)
        assert -found.gradient[0] == pytest.approx(value if new < -4.0 else 0.0, rel=1e-12)
