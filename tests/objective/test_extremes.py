"""Numbers at the edge, and tokens that are rejected."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from command import run

from grpo_cli import VARIANTS, InputError, evaluate

# ---- ratios and rewards near the ends of a double: finite where the limit is, else an error ------


HUGE = {  # log ratio 800: the ratio is no double
    "log_probs_new": [[-1.0, -1.0], [-1.0]],
    "log_probs_old": [[-801.0, -1.0], [-1.0]],
    "log_probs_ref": [[-1.5, -1.0], [-1.0]],
}


def test_a_kl_that_beta_keeps_out_may_overflow():
    chosen = {"variant": "dr", "stages": {"kl": "k3"}, "kl_weight": "ratio"}
    found = evaluate({**HUGE, "advantages": [1.0, -1.0]}, **chosen, beta=0.0)
    assert math.isfinite(found.objective)
    with pytest.raises(InputError, match="response 0, token 0: the objective is not finite"):
        evaluate({**HUGE, "advantages": [1.0, -1.0]}, **chosen, beta=0.1)


def test_the_token_is_named_where_only_one_term_overflows():
    losing = {**HUGE, "advantages": [-1.0, 1.0]}
    with pytest.raises(InputError, match=r"response 0, token 0: .* surrogate -inf, kl 0\.1"):
        evaluate(losing, "grpo")


@pytest.mark.parametrize("kl", ["k1", "k2", "k3", "slime/low_var_kl"])
def test_an_infinite_ratio_times_no_kl_is_0(kl):
    record = {**HUGE, "log_probs_ref": [[-1.0, -1.0], [-1.0]], "advantages": [0.0, 0.0]}
    chosen = {"variant": "dr", "stages": {"kl": kl}, "kl_weight": "ratio", "beta": 0.1}
    if kl == "k1":  # its slope is 1 whatever the distance
        with pytest.raises(InputError, match="response 0, token 0"):
            evaluate(record, **chosen)
    else:
        assert evaluate(record, **chosen).objective == 0.0


@pytest.mark.parametrize("variant", ["kl-cov", "verl/kl_cov"])
def test_an_infinite_ratio_times_no_advantage_is_0(variant):
    record = {**HUGE, "advantages": [0.0, 0.0]}
    assert evaluate(record, variant=variant, ppo_kl_coef=0.0).objective == 0.0


def test_responses_that_overflow_together_are_an_error():
    record = {
        "log_probs_new": [[-1.0], [-1.0]],
        "log_probs_old": [[-710.7], [-710.7]],
        "advantages": [-1.0, -1.0],
    }
    with pytest.raises(InputError, match="the sum over the record's responses overflows"):
        evaluate(record, variant="dr")
    tokens = {name: [[-0.1], [row[0] for row in record[name]]] for name in list(record)[:2]}
    with pytest.raises(InputError, match="response 1: the sum over the response's tokens"):
        evaluate({**tokens, "advantages": [1.0, -1.0]}, variant="dr")


def test_where_no_sum_overflows_there_is_no_error():
    """A J of 10³⁰⁶ is told, and of two records the one that overflows is blamed."""
    large = {"log_probs_new": [[-1.0]], "log_probs_old": [[-706.0]], "advantages": [-1.0]}
    assert evaluate(large, variant="dr").objective == pytest.approx(-math.exp(705.0), rel=1e-12)
    many = {name: values * 150 for name, values in large.items()}
    with pytest.raises(InputError, match=r"^\[1\]: the sum over the record's responses"):
        evaluate([large, many], variant="dr")


@pytest.mark.parametrize("reward", [1e101, -1.7e308, 10**200])
@pytest.mark.parametrize(
    ("name", "place"),
    [("rewards", "[1]"), ("advantages", "[1]"), ("rewards", "[1][0]"), ("advantages", "[1][0]")],
)
def test_rewards_whose_squares_overflow_are_an_error(tmp_path, reward, name, place):
    """They used to be dead groups (σ = ∞), or a traceback."""
    values = [1.0, reward] if place == "[1]" else [[1.0], [reward]]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"log_probs_new": [[-1.0], [-1.0]], name: values}))
    found = run("eval", path, "-v", "dapo")
    assert found.exit_code == 3
    said = found.stderr.strip().removeprefix(f"grpo: {path}:1: ")
    assert said.startswith(f"{name}{place}: expected a number between -1e+100 and 1e+100, got ")


def test_the_place_of_a_fault_is_the_one_that_counts():
    """Not that of a NaN before it that the mask takes out."""
    record = {**HUGE, "log_probs_old": [[math.nan, math.nan], [-1.0]], "advantages": [1.0, -1.0]}
    masked = {**record, "mask": [[0, 1], [1]]}
    with pytest.raises(InputError, match=r"log_probs_old\[0\]\[1\]: expected a finite number"):
        evaluate(masked, variant="dr")
    assert evaluate({**masked, "mask": [[0, 0], [1]]}, variant="dr").objective == -0.5


# ---- what verl's decoupled correction rejects is as if it were masked, in every loss -------------


LOSSES = [
    name
    for name, row in VARIANTS.items()
    if name.startswith("verl/") and row.correction.choice.absent
]
RECORD = {
    "log_probs_new": [[-0.5, -1.0, -2.2, -0.7], [-0.25, -3.0, -1.5], [-0.3]],
    "log_probs_old": [[-0.9, -1.3, -1.9, -1.1], [-0.6, -3.2, -1.1], [-0.4]],
    "log_probs_rollout": [[-0.9, -2.3, -1.9, -1.0], [-0.6, -1.2, -1.1], [-2.4]],
    "log_probs_ref": [[-0.8, -1.2, -1.7, -1.0], [-0.5, -3.3, -1.3], [-0.6]],
    "entropies": [[0.5, 1.0, 0.3, 0.2], [0.4, 0.9, 0.8], [0.1]],
    "advantages": [-1.0, 1.5, 0.75],
}
KEPT = [[1, 0, 1, 1], [1, 0, 1], [0]]
"""The tokens whose π_old/π_rollout is within [0.5, 2]."""
HYPER = {"beta": 0.3, "entropy_coef": 0.1, "kl_cov_ratio": 0.4, "clip_cov_ratio": 1.0}
HYPER |= {"clip_cov_lb": 0.0}
REJECTS = {"rollout_is": None, "rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0"}


@pytest.mark.parametrize("variant", LOSSES)
def test_what_is_rejected_is_as_if_it_were_masked(variant: str) -> None:
    stages = {"correction": "verl/decoupled"}
    rejected = evaluate(RECORD | {"hyperparameters": HYPER | REJECTS}, variant, stages=stages)
    masked = evaluate(RECORD | {"hyperparameters": HYPER, "mask": KEPT}, variant)
    assert rejected.loss == pytest.approx(masked.loss, rel=1e-13)
    kept = np.concatenate([np.array(row, dtype=bool) for row in KEPT])
    gradient = np.concatenate([np.array(row) for row in rejected.gradient])
    assert not gradient[~kept].any()
    wanted = np.concatenate([np.array(row) for row in masked.gradient])
    np.testing.assert_allclose(gradient[kept], wanted, rtol=1e-13)


def test_all_rejected_is_no_loss() -> None:
    rejects = REJECTS | {"rollout_rs_threshold": "0.999999_1.000001"}
    apart = [[x - 0.5 for x in row] for row in RECORD["log_probs_old"]]
    record = RECORD | {"log_probs_rollout": apart, "hyperparameters": rejects}
    for variant in LOSSES:
        assert evaluate(record, variant, stages={"correction": "verl/decoupled"}).loss == 0.0
