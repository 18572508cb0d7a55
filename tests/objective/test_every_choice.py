"""Every choice at every stage, those of no row among them: its gradient, and no order of responses.

Finite differences see what a choice stops on purpose only where ``held`` holds it still; such a
choice says so itself (``Choice.stops_gradient``), and the two lists are the same.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from exactness.cases import random_batch
from files import each, some

from grpo_cli.objective.objective import Objective
from grpo_cli.objective.pipeline import evaluate
from grpo_cli.variants import STAGES
from grpo_cli.variants.plan import plan
from objective import held as holding
from objective.held import held
from objective.test_table import permuted

NEEDED = {
    "max_completion_length": 20,
    "response_length": 20,
    "loss_denominator": 30,
    "clip_cov_seed": 1,
    "beta": 0.3,
    "rejection_threshold": 0.1,
    "global_batch_size": 4,
}
CHOICES = [(stage, name) for stage, table in STAGES.items() for name in table.choices]
SEEDS = some(range(3), 2)


def objective_with(stage: str, name: str, **stages: str) -> Objective:
    """``dr`` with this choice, which has no clip that would hide a gradient."""
    stages = {"surrogate": "unclipped", **stages, stage: name}
    takes = plan("dr", stages=stages).takes()
    values = {key: value for key, value in NEEDED.items() if key in takes}
    made = plan("dr", stages=stages, hyperparameters=values)
    return made.objective({}, advantages_given=name == "given")


def batch_for(seed: int, name: str):
    batch = random_batch(seed)
    if "passk" in name:  # which refuses a group of one
        batch = replace(batch, groups=np.zeros_like(batch.groups), group_count=1)
    if name != "given":
        return batch
    return replace(batch, advantages=np.random.default_rng(seed).normal(size=len(batch.rewards)))


@each(("stage", "name"), CHOICES, ids="/".join)
def test_the_gradient_is_that_of_the_objective(stage, name):
    for seed in SEEDS:
        batch, objective = batch_for(seed, name), held(objective_with(stage, name))
        gradient = evaluate(batch, objective).gradient
        direction = np.random.default_rng(seed).normal(size=batch.responses.total)
        step = 1e-6

        def value(distance: float, batch=batch, objective=objective, direction=direction) -> float:
            moved = batch.log_probs_new + distance * direction
            at = evaluate(replace(batch, log_probs_new=moved), objective)
            return float(at.record_objective[0])

        slope = (value(step) - value(-step)) / (2 * step)
        parts = gradient * direction
        assert abs(parts.sum() - slope) <= 1e-6 * np.abs(parts).sum() + 1e-8, seed


@each(("stage", "name"), CHOICES, ids="/".join)
def test_the_order_of_the_responses_changes_no_bit(stage, name):
    for seed in SEEDS:
        batch, objective = batch_for(seed, name), objective_with(stage, name)
        order = np.random.default_rng(seed).permutation(batch.responses.count)
        shuffled = permuted(batch, order)
        if name == "given":
            shuffled = replace(shuffled, advantages=batch.advantages[order])
        found, again = evaluate(batch, objective), evaluate(shuffled, objective)
        assert found.record_objective.tolist() == again.record_objective.tolist()
        assert found.response_contribution[order].tolist() == again.response_contribution.tolist()


def test_a_choice_that_stops_a_gradient_says_so():
    said = {
        (stage, name)
        for stage, table in STAGES.items()
        for name, choice in table.choices.items()
        if choice.stops_gradient
    }
    assert said == set(holding.stopped())
