"""Which policies' log-probs an objective needs, beside what changes when they change."""

from dataclasses import replace

import numpy as np
import pytest
from rows import VARIANTS, plan

from grpo_cli.engine.probe import probe
from grpo_cli.objective.pipeline import evaluate

SETTINGS = {
    "max_completion_length": 512,
    "num_items_in_batch": 30,
    "gradient_accumulation_steps": 1,
    "steps_per_generation": 1,
    "response_length": 9,
    "clip_cov_seed": 1,
    "rejection_threshold": 0.1,
}
COLUMNS = ("log_probs_old", "log_probs_ref", "log_probs_rollout")


def changing(objective, batch):
    """The columns that change J or its gradient."""
    before = evaluate(batch, objective)
    steps = np.linspace(0.01, 0.4, batch.responses.total)
    for name in COLUMNS:
        after = evaluate(replace(batch, **{name: getattr(batch, name) - steps}), objective)
        same = np.array_equal(after.gradient, before.gradient)
        if not same or not np.array_equal(after.record_objective, before.record_objective):
            yield name


@pytest.mark.parametrize("given", [False, True])
def test_what_changes_a_row_is_what_it_needs(given):
    """Of a framework's rows that drop every response of this batch, or none, nothing changes."""
    batch = probe()
    tokens, responses = batch.responses.total, batch.responses.count
    batch = replace(
        batch,
        values=np.linspace(-1.0, 1.0, tokens),
        sum_pi_squared=np.full(tokens, 0.3),
        reward_baselines=np.linspace(0.0, 1.0, responses),
    )
    for name in VARIANTS:
        objective = plan(name).objective(SETTINGS, advantages_given=given)
        found, needed = {*changing(objective, batch)}, {*objective.needed_log_probs}
        assert found <= needed, name
        assert found == needed or "/" in name, name


@pytest.mark.parametrize(
    ("row", "values", "needed"),
    [
        ("grpo", {"beta": 0.0}, ["log_probs_old"]),
        ("opo", {}, []),
        ("scale-rl", {}, ["log_probs_rollout"]),
        ("trl/grpo", {"off_policy_mask_threshold": None}, ["log_probs_old"]),
        ("trl/grpo", {"off_policy_mask_threshold": 0.5}, ["log_probs_old", "log_probs_rollout"]),
        ("grpo-k1", {"kl_weight": "ratio"}, ["log_probs_old", "log_probs_ref"]),
        ("nemo-rl/on-policy", {"beta": 0.0}, []),
    ],
)
def test_settings_decide_too(row, values, needed):
    objective = plan(row).objective(SETTINGS | values, advantages_given=False)
    assert [*objective.needed_log_probs] == needed
