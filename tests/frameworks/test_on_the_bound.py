"""What lies on a bound is kept, in every framework that drops tokens; what is beyond it is not.

As their sources compare: SkyRL a9564572, ROLL 8eb27cc2, OpenRLHF 0.11.2, NeMo-RL 7ea279a, AReaL
cbff54d, open-instruct e6c3044, prime-rl 559b447, verl 0.9.1, TRL 1.16.0 and ms-swift 4.6.0.
"""

from __future__ import annotations

import math
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
Case = tuple[str, str | None, str, float, dict[str, Any]]
CASES: list[
    Case
] = [  # the choice, the names of its bounds, what is to lie on them, what else it takes
    ("areal/sequence-mask", "is_low", "is_high", 1.0, {}),
    ("trl/token-mask", "is_low", "is_high", 1.0, {}),
    ("trl/sequence-mask", "is_low", "is_high", 1.0, {}),
    ("ms-swift/token-mask", None, "is_high", 1.0, {}),
    ("ms-swift/sequence-mask", None, "is_high", 1.0, {}),
    ("nemo-rl/seq-logprob-error", None, "seq_logprob_error_threshold", 1.0, {}),
    ("open-instruct/rho", "rho_mask_low", "rho_mask_high", 1.0, {"is_high": None}),
    ("open-instruct/rho-sequence", "rho_mask_low", "rho_mask_high", 1.0, {"is_high": None}),
    *(
        ("skyrl/off-policy", f"{name}_low", f"{name}_high", 1.0, more)
        for name, more in (
            ("outlier_token_is_threshold", {}),
            ("token_mask_is_threshold", {}),
            ("geo_mask", {"sequence_mask_metric": "geometric"}),
            ("product_mask", {"sequence_mask_metric": "product"}),
        )
    ),
    *(
        ("roll/train-infer", f"{name}_low", f"{name}_high", at, {"filter_agg": level})
        for name, at in (("ratio", 1.0), ("diff", 0.0))
        for level in ("token", "sequence", "segment", "geometric")
    ),
    *(
        ("areal/rejection", "is_low", "is_high", at, of | {"rejection_metric": metric})
        for metric, at in (("ratio", 1.0), ("kl_k1", 0.0), ("kl_k2", 0.0), ("kl_k3", 0.0))
        for of in (
            {"rejection_level": "token"},
            {"rejection_level": "sequence", "rejection_agg": "sum"},
            {"rejection_level": "sequence", "rejection_agg": "max"},
        )
    ),
]


def kept(name: str, values: dict[str, Any]) -> list[float]:
    found: list[float] = (
        evaluate(RECORD, "dr", stages={"correction": name}, **values)
        .columns()["correction"]
        .tolist()
    )
    return found


@each(("name", "low", "high", "at", "more"), CASES)
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


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *((f"openrlhf/{one}-mask", {"rejection_threshold": 0.0}) for one in ("token-tv", "seq-tv")),
        ("openrlhf/token-binary-kl-mask", {"rejection_threshold": 0.0}),
        ("openrlhf/seq-binary-kl-mask", {"rejection_threshold": 0.0}),
        *(
            ("verl/decoupled", {"rollout_rs": f"{of}_{kind}", "rollout_rs_threshold": on})
            for of in ("token", "seq_sum", "seq_mean", "seq_max")
            for kind, on in (("k1", "1_1"), ("k2", "0"), ("k3", "0"))
            if (of, kind) != ("seq_max", "k1")
        ),
        *(
            (name, {"off_policy_mask_threshold": 0.0})
            for name in ("trl/masks", "ms-swift/off-policy-mask")
        ),
    ],
)
def test_no_distance_is_within_a_bound_of_none(name: str, values: dict[str, Any]) -> None:
    assert kept(name, values) == [1.0] * 4


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("prime-rl/ipo", {"ipo_threshold": 0.0}),
        ("skyrl/dppo_tv", {"divergence_low": 0.0, "divergence_high": 0.0}),
        ("skyrl/dppo_kl", {"divergence_low": 0.0, "divergence_high": 0.0}),
    ],
)
def test_a_surrogate_drops_what_moved_and_nothing_else(name: str, values: dict[str, Any]) -> None:
    found = evaluate(RECORD, "dr", stages={"surrogate": name}, **values).breakdown
    assert found.surrogate.tolist() == [1.0, 1.0, 1.0, -1.0]
    assert not found.clip.any()


MOST = math.exp(22.0)
FAR: list[tuple[str, dict[str, Any], float]] = [  # the log ratio's bound, as each source has it
    ("skyrl/off-policy", {"tis_ratio_type": "token", "token_tis_ratio_clip_high": MOST}, 20.0),
    (
        "skyrl/off-policy",
        {"tis_ratio_type": "sequence", "sequence_tis_ratio_clip_high": MOST},
        20.0,
    ),
    ("ms-swift/token-truncate", {"is_high": MOST}, 20.0),
    ("ms-swift/sequence-truncate", {"is_high": MOST}, 20.0),
    ("open-instruct/rho", {"is_high": None}, 10.0),
    ("open-instruct/rho-sequence", {"is_high": None}, 10.0),
    ("verl/decoupled", {"rollout_is": "token", "rollout_is_threshold": MOST}, 20.0),
    ("verl/decoupled", {"rollout_is": "sequence", "rollout_is_threshold": MOST}, 20.0),
    ("trl/token-truncate", {"is_high": MOST}, 23.0),  # none; its cap comes after
]


@each(("name", "values", "bound"), FAR)
@each("sign", [1.0, -1.0])
def test_ratios_are_bounded_before_they_are_weights(
    name: str, values: dict[str, Any], bound: float, sign: float
) -> None:
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
