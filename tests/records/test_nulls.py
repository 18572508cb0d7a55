"""null in records: tokens that the engine did not score, and responses without a reward."""

from __future__ import annotations

import math
from typing import Any

import pytest

from grpo_cli import InputError, check, evaluate

RECORD: dict[str, Any] = {
    "log_probs_new": [[-1.0, -2.0, -0.5], [-3.0, -0.25, -1.0]],
    "log_probs_old": [[-1.5, -2.5, -0.25], [-2.0, -0.5, -1.0]],
    "log_probs_rollout": [[-1.25, -2.0, -0.5], [-2.5, -0.25, -1.5]],
    "advantages": [1.0, -1.0],
}
UNSCORED = [[-1.25, None, -0.5], [None, -0.25, -1.5]]
WEIGHED: dict[str, Any] = {
    "stages": {"correction": "token-truncate"},
    "is_low": 0.0,
    "is_high": 2.0,
}


def test_a_token_that_the_engine_did_not_score_has_weight_1() -> None:
    told = evaluate([RECORD, RECORD | {"log_probs_rollout": UNSCORED}], **WEIGHED)
    stood_in = [[-1.25, -2.5, -0.5], [-2.0, -0.25, -1.5]]
    wanted = evaluate([RECORD, RECORD | {"log_probs_rollout": stood_in}], **WEIGHED)
    assert told.objective == wanted.objective
    assert [*told.columns("token")["correction"]][6:] == [*wanted.columns("token")["correction"]][
        6:
    ]
    said = "its log-prob is taken from log_probs_old, weight 1 as in TRL"
    assert f"log_probs_rollout has null for 2 tokens: {said}" in told.notices
    masked = RECORD | {"log_probs_rollout": UNSCORED, "mask": [[1, 0, 1], [1, 1, 1]]}
    assert f"log_probs_rollout has null for 1 token: {said}" in evaluate(masked).notices
    assert not [one for one in check([masked]).findings if one.severity == "error"]


def test_without_the_old_policy_the_current_one_stands_in() -> None:
    on_policy = {key: value for key, value in RECORD.items() if key != "log_probs_old"}
    told = evaluate(on_policy | {"log_probs_rollout": UNSCORED}, **WEIGHED)
    stood_in = [[-1.25, -2.0, -0.5], [-3.0, -0.25, -1.5]]
    wanted = evaluate(on_policy | {"log_probs_rollout": stood_in}, **WEIGHED)
    assert told.objective == wanted.objective


def test_nan_of_the_engine_and_null_elsewhere_are_errors() -> None:
    with pytest.raises(InputError, match=r"got NaN; mask .* or write null"):
        evaluate(RECORD | {"log_probs_rollout": [[math.nan, -1.0, -1.0], [-1.0, -1.0, -1.0]]})
    with pytest.raises(InputError, match="expected a number, got null"):
        evaluate(RECORD | {"log_probs_old": UNSCORED})


@pytest.mark.parametrize(
    "rewards", [[1.0, None], [[1.0], [None]], [[1.0, 0.0], [None, None]], {"a": [1.0, None]}]
)
def test_a_reward_may_be_unknown_where_advantages_are_given(rewards: Any) -> None:
    told = evaluate(RECORD | {"rewards": rewards})
    assert told.objective == evaluate(RECORD).objective
    said = "the record's advantages are used, and none of its rewards"
    assert f"rewards has null for 1 response: {said}" in told.notices
    with pytest.raises(InputError, match="rewards: missing"):
        evaluate(RECORD | {"rewards": rewards}, stages={"advantage": "group-mean"})
    bare = {key: value for key, value in RECORD.items() if key != "advantages"}
    with pytest.raises(InputError, match="null"):
        evaluate(bare | {"rewards": rewards})
