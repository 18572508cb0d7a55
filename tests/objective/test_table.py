"""What every row of the table must satisfy, and every choice at every stage.

Finite differences see what a choice stops on purpose only where ``held`` holds it still; such a
choice says so itself (``Choice.stops_gradient``), and the two lists are the same.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache

import numpy as np
from exactness.cases import random_batch
from files import MORE, each, some
from rows import (
    HYPERPARAMETERS,
    NAMES,
    STAGES,
    VARIANTS,
    Hyperparameter,
    HyperparameterError,
    Value,
    plan,
)

from grpo_cli.batch import Batch
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.pipeline import evaluate
from objective.held import held, stopped

REQUIRED: dict[str, Value] = {
    "clip_cov_seed": 3,
    "rejection_threshold": 0.01,
    "response_length": 4,
    "max_completion_length": 4,
    "loss_denominator": 4,
    "global_batch_size": 9,
    "beta": 0.3,
}
"""Values for the hyperparameters that have none of their own."""

SEEDS = range(int(os.environ.get("GRPO_BATCHES", "3" if MORE else "1")))  # .ci/nightly: 100


CHOICES = [
    f"dr surrogate=unclipped {stage}={name}" for stage in STAGES for name in STAGES[stage].choices
]
"""Each with no clip that would hide a gradient."""

SETTINGS = [
    f"verl/decoupled_{level}_is rollout_is_batch_normalize=true" for level in ("token", "seq")
]
"""Rows with a setting that adds up tokens of many responses."""


@cache
def objective_of(name: str) -> Objective:
    row, *words = name.split()
    asked = dict(word.split("=") for word in words)
    stages = {key: value for key, value in asked.items() if key in STAGES}
    taken = plan(row, stages=stages).takes()
    needed = REQUIRED if stages else {key: REQUIRED[key] for key in REQUIRED if key != "beta"}
    given = {key: value for key, value in needed.items() if key in taken}
    more = {key: value for key, value in asked.items() if key not in STAGES}
    given |= {key: float(one) if one[0].isdigit() else one for key, one in more.items()}
    made = plan(row, stages=stages, hyperparameters=given)
    return made.objective({}, advantages_given=name.endswith("=given"))


EVERY = [*VARIANTS, *CHOICES, *SETTINGS]


def seeds(name: str) -> range:
    """Of a choice's batches a quarter of a row's."""
    return SEEDS if name in VARIANTS else SEEDS[: max(3, len(SEEDS) // 4)]


def batch_for(name: str, seed: int, records: int = 1) -> Batch:
    batch = random_batch(seed, records=records)
    if "passk" in name:  # which refuses a group of one
        owner = batch.records.index
        batch = replace(batch, groups=owner, group_count=records)
    if not name.endswith("=given"):
        return batch
    return replace(batch, advantages=np.random.default_rng(seed).normal(size=len(batch.rewards)))


def test_aliases_do_not_hide_each_other():
    aliases = [alias for row in VARIANTS.values() for alias in row.aliases]
    assert len(NAMES) == len(VARIANTS) + len(aliases)


def test_rows_say_where_they_come_from():
    for name, row in VARIANTS.items():
        assert row.title, name
        assert row.note, name
        assert ("/" in name) == bool(row.version), name
        assert not row.paper or (row.paper[4] == "." and len(row.paper) == 10), name


@each("name", EVERY)
def test_everything_is_finite_and_contributions_add_up_to_the_objective(name: str):
    for seed in seeds(name):
        found = evaluate(batch_for(name, seed, records=2), objective_of(name))
        for values in (
            found.contribution,
            found.gradient,
            found.record_objective,
            found.surrogate,
        ):
            assert np.isfinite(values).all(), f"seed {seed}"
        cuts, tokens = found.batch.records, found.batch.responses
        by_response = tokens.sum(found.contribution)
        # A response without tokens has a term of its own in a few frameworks, and no token to show.
        by_response = np.where(tokens.lengths > 0, by_response, found.response_contribution)
        scale = cuts.sum(np.abs(by_response))
        for parts in (by_response, found.response_contribution):
            off = np.abs(cuts.sum(parts) - found.record_objective).max()
            assert off <= 1e-14 * scale.max(), f"seed {seed}"


@each("name", EVERY)
def test_gradient_is_that_of_the_objective(name: str):
    jumps = 0
    for seed in seeds(name):
        batch, objective = batch_for(name, seed), held(objective_of(name))
        found = evaluate(batch, objective)
        direction = np.random.default_rng(seed).normal(size=batch.responses.total)
        rise = risen(batch, objective, direction, 1e-6)
        parts = found.gradient * direction
        off = abs(parts.sum() - rise / 2e-6)
        room = 1e-7 * np.abs(parts).sum() + 1e-9
        if off > room and abs(risen(batch, objective, direction, 1e-7)) > 0.5 * abs(rise):
            jumps += 1  # the rows that choose tokens by rank: two of them change places here
            continue
        assert off <= room, f"seed {seed}"
    assert jumps <= len(seeds(name)) / 20


def risen(batch: Batch, objective: Objective, direction: np.ndarray, step: float) -> float:
    """J a step ahead, less J a step back: a tenth for a tenth of the step, but for a jump."""
    above, below = (
        evaluate(replace(batch, log_probs_new=batch.log_probs_new + s * direction), objective)
        for s in (step, -step)
    )
    return float(above.record_objective[0] - below.record_objective[0])


@each("name", EVERY)
def test_order_of_the_responses_changes_no_bit(name: str):
    for seed in seeds(name):
        batch, objective = batch_for(name, seed), objective_of(name)
        order = in_turn(batch, np.random.default_rng(seed).permutation(batch.responses.count))
        found, again = evaluate(batch, objective), evaluate(permuted(batch, order), objective)
        for ours, theirs in (
            (found.record_objective, again.record_objective),
            (found.response_contribution[order], again.response_contribution),
        ):
            assert ours.tolist() == theirs.tolist(), f"seed {seed}"


def in_turn(batch: Batch, order: np.ndarray) -> np.ndarray:
    """The order with the responses of each trajectory as they follow each other."""
    order = order.copy()
    for trajectory in range(batch.trajectory_count):
        places = np.flatnonzero(batch.trajectories[order] == trajectory)
        order[places] = np.sort(order[places])
    return order


def permuted(batch: Batch, order: np.ndarray) -> Batch:
    """The batch, of one record, with its responses in another order."""
    starts, lengths = batch.responses.starts, batch.responses.lengths
    owner = batch.responses.index[batch.turns.starts]
    turns = np.concatenate([np.flatnonzero(owner == i) for i in order])
    spans = [
        np.arange(start, start + length) for start, length in zip(starts, lengths, strict=True)
    ]
    tokens = np.concatenate([spans[i] for i in order])
    columns = ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout", "entropies")
    columns += ("values", "sum_pi_squared", "turn_ids")
    given = batch.advantages
    return replace(
        batch,
        responses=type(batch.responses)(lengths[order]),
        groups=batch.groups[order],
        rewards=batch.rewards[order],
        reward_baselines=batch.reward_baselines[order],
        trajectories=batch.trajectories[order],
        turn_rewards=batch.turn_rewards[turns],
        state_ids=batch.state_ids[turns],
        advantages=None if given is None else given[order],
        **{column: getattr(batch, column)[tokens] for column in columns},
    )


def test_a_choice_that_stops_a_gradient_says_so():
    declared = {
        (stage, name)
        for stage, table in STAGES.items()
        for name, choice in table.choices.items()
        if choice.stops_gradient
    }
    assert declared == set(stopped())


@each("name", some(EVERY, 80))
def test_signature_has_every_value(name: str):
    objective = objective_of(name)
    for stage, bound in objective.stages.items():
        for parameter, value in bound.values.items():
            for other in others(parameter, value):
                try:
                    changed = Bound(bound.name, bound.choice, {**bound.values, parameter: other})
                except HyperparameterError:
                    assert other is None  # which not every choice takes
                    continue
                assert replace(objective, **{stage: changed}).signature != objective.signature


MIXED = ["dapo entropy_coef=0.01", "trl/sapo entropy_coef=0.01", "dr kl=k3 beta=0.1"]
"""Rows with a term whose coefficient differs by record."""


@each("name", [*some(EVERY, 80), *MIXED])
def test_records_of_other_settings_in_one_pass_have_the_bytes_that_they_have_alone(name: str):
    records, objective = 3, replace(objective_of(name), batch="record")
    batch = batch_for(name, 0, records=records)
    values = settings_by_record(objective, records)
    columns = {
        stage: {one: np.array(row) for one, row in own.items()} for stage, own in values.items()
    }
    alone = []
    for at in range(records):
        bound = objective.stages
        stages = {
            stage: replace(
                bound[stage],
                values={**bound[stage].values, **{one: row[at] for one, row in own.items()}},
            )
            for stage, own in values.items()
        }
        alone.append(replace(objective, **stages))
    numbers = numbers_by_record(batch, alone[0].vary(columns))
    for at in range(records):
        for number, wanted in numbers_by_record(batch, alone[at]).items():
            assert numbers[number][at] == wanted[at], f"{number} of record {at}"


def settings_by_record(objective: Objective, records: int) -> dict[str, dict[str, list[Value]]]:
    """Stage → hyperparameter that may differ by record → a value for each."""
    shared: dict[str, list[Value]] = {}
    for bound in objective.stages.values():
        for name in bound.choice.levels:
            row, own = HYPERPARAMETERS[name], float(bound.values[name] or 1.5)
            tried = [own * (1.0 + 0.4 * at) for at in range(records)]
            if not allowed(row, name, tried[-1]):
                tried = [own / (1.0 + 0.4 * at) for at in range(records)]
            shared[name] = [row.check(name, value) for value in tried]
    return {
        stage: {name: shared[name] for name in bound.choice.levels}
        for stage, bound in objective.stages.items()
        if bound.choice.levels
    }


def numbers_by_record(batch: Batch, objective: Objective) -> dict[str, list[bytes]]:
    """Every number of each record, as bytes."""
    found = evaluate(batch, objective)
    tokens = [
        *("advantage", "log_ratio", "ratio", "surrogate", "clip", "kl", "correction"),
        *("contribution", "gradient", "record_gradient", "token_weight"),
    ]
    ends = {
        "tokens": np.cumsum(batch.record_tokens.lengths),
        "responses": np.cumsum(batch.records.lengths),
        "records": np.arange(1, batch.records.count + 1),
    }
    columns: dict[str, tuple[str, np.ndarray]] = {
        name: ("tokens", getattr(found, name))
        for name in tokens
        if getattr(found, name) is not None
    }
    for name in ("weight", "response_contribution", "kl_scale"):
        columns[name] = "responses", getattr(found, name)
    for name in ("denominator", "record_objective", "record_scale"):
        columns[name] = "records", getattr(found, name)
    columns["squares"] = "records", found.record_gradient_squares
    parts = {
        name: [part.tobytes() for part in np.split(column, ends[unit][:-1])]
        for name, (unit, column) in columns.items()
    }
    return parts | {
        "signature": [one.encode() for one in found.objective.signatures(found.batch.records.count)]
    }


def others(parameter: str, value: Value) -> list[Value]:
    """Values near and far that the hyperparameter may have instead."""
    row = HYPERPARAMETERS[parameter]
    if row.words:
        return [word for word in row.words if word != value]
    near = [np.nextafter(value, value + 1.0)] if isinstance(value, float) else []
    tried = [*near, 0.5, 1, 2, 7, None] if value is not None else [0.5, 1, 2, 7]
    found = [other for other in tried if other != value and allowed(row, parameter, other)]
    assert found
    return found


def allowed(row: Hyperparameter, parameter: str, value: Value) -> bool:
    try:
        row.check(parameter, value)
    except HyperparameterError:
        return False
    return True
