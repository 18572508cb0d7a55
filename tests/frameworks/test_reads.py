"""A framework's row takes what the framework's released function reads, and nothing else."""

from __future__ import annotations

import pytest

from grpo_cli import UsageError, evaluate
from grpo_cli.variants.plan import plan

RECORD = {
    "log_probs_new": [[-0.5, -1.0], [-0.25, -3.0]],
    "log_probs_old": [[-2.5, -1.5], [-2.0, -3.25]],
    "advantages": [-1.0, 1.0],
}


def test_a_record_s_setting_that_the_released_function_ignores_changes_nothing() -> None:
    """verl's gspo has no dual clip, whatever clip_ratio_c its configuration has."""
    plain = evaluate(RECORD, "verl/gspo")
    for name in ("clip_ratio_c", "dual_clip"):
        given = evaluate(RECORD | {"hyperparameters": {name: 1.5}}, "verl/gspo")
        assert (given.loss, given.signature) == (plain.loss, plain.signature)
    swapped = evaluate(
        RECORD | {"hyperparameters": {"clip_ratio_c": 1.5}},
        "verl/gspo",
        stages={"surrogate": "clip"},
    )
    assert swapped.loss != plain.loss


def test_a_flag_that_the_released_function_ignores_is_a_usage_error() -> None:
    said = (
        "dual_clip: verl/gspo ignores it, as verl's own function does; "
        "add --surrogate clip to apply it"
    )
    with pytest.raises(UsageError) as raised:
        plan("verl/gspo", hyperparameters={"clip_ratio_c": 1.5})
    assert str(raised.value) == said
    assert plan("verl/gspo", stages={"surrogate": "clip"}, hyperparameters={"dual_clip": 1.5}).flags
    assert plan("verl/gspo").takes() >= {"epsilon_low", "epsilon_high", "beta", "entropy_coef"}
    assert not plan("verl/gspo").takes() & {"dual_clip", "delta", "log_ratio_max"}
