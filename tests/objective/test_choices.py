"""Choices that no paper's row uses, and what every choice says when it cannot work."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from files import each, expressions
from rows import ESTIMATES, STAGES, on, plan  # noqa: F401 - in choices.txt

from grpo_cli import GrpoError, InputError
from grpo_cli.batch import Batch, Segments
from grpo_cli.objective import pipeline
from grpo_cli.objective.advantage.weighed import weighed
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.signature import line
from grpo_cli.objective.surrogate.clip import window  # noqa: F401
from grpo_cli.objective.surrogate.joint import fipo

# Two groups; the second is one response. Tokens per response: 2, 1, 3.
BATCH = Batch(
    responses=Segments(np.array([2, 1, 3])),
    records=Segments(np.array([3])),
    groups=np.array([0, 0, 1]),
    group_count=2,
    log_probs_new=np.array([-0.5, -1.0, -0.7, -0.2, -1.1, -0.3]),
    log_probs_old=np.array([-0.6, -0.8, -0.7, -0.3, -1.0, -0.5]),
    log_probs_ref=np.array([-0.4, -0.9, -1.0, -0.2, -1.3, -0.5]),
    log_probs_rollout=np.array([-0.9, -0.6, -2.0, -0.3, -1.2, -0.4]),
    entropies=np.array([0.1, 0.4, 0.2, 0.3, 0.8, 0.6]),
    rewards=np.array([1.0, 0.0, 0.5]),
)


def made(batch: Batch = BATCH, variant: str = "dr", **choices: object) -> Breakdown:
    """``choices`` are stages; whatever else is a hyperparameter."""
    return on(batch, variant, **choices)


def same(found: object, wanted: object) -> str:
    """Whether they are, to 1e-14."""
    alike = np.allclose(found, wanted, rtol=1e-14, atol=1e-15)
    return "same" if alike and np.shape(found) == np.shape(wanted) else f"{found}, not {wanted}"


def with_(**columns: object) -> Batch:
    """The batch with other columns."""
    return replace(BATCH, **columns)


def error_of(batch: Batch = BATCH, variant: str = "dr", **choices: object) -> str:
    """The error."""
    with pytest.raises(GrpoError) as error:
        made(batch, variant, **choices)
    return f"{type(error.value).__name__}: {error.value}"


LONE = Batch(
    responses=Segments(np.array([1])),
    records=Segments(np.array([1])),
    groups=np.array([0]),
    group_count=1,
    log_probs_new=np.array([-1.0]),
    log_probs_old=np.array([-1.5]),
    rewards=np.array([3.0]),
)


def test_values_by_hand_and_errors() -> None:
    expressions(Path(__file__).with_name("choices.txt"), dict(globals()), by_hand=True)


@each("aggregate", ["response-mean", "token-sum", "token-mean", "prompt-mean"])
@each("correction", ["none", "token-truncate"])
@each("variant", ["real", "gmpo", "gspo"])
def test_coupled_tokens_keep_the_exact_gradient(variant: str, correction: str, aggregate: str):
    """Under weights and corrections that differ between the tokens that are coupled."""
    direction = np.array([0.3, -0.7, 0.2, 0.9, -0.4, 0.5])
    chosen = {"variant": variant, "correction": correction, "aggregate": aggregate}
    batch = replace(BATCH, groups=np.array([0, 0, 0]), group_count=1)
    found = made(batch, **chosen)
    above, below = (
        made(replace(batch, log_probs_new=batch.log_probs_new + s * direction), **chosen)
        for s in (1e-6, -1e-6)
    )
    slope = (above.record_objective[0] - below.record_objective[0]) / 2e-6
    assert abs(found.gradient @ direction - slope) < 1e-9


MEASURED = [name for name, one in STAGES["advantage"].choices.items() if one.measure is not None]


@each("name", MEASURED)
def test_a_record_s_own_statistics_are_those_of_the_record_alone(name: str):
    both = replace(
        twice(BATCH),
        rewards=np.array([1.0, 0.0, 0.5, 0.25, 2.0, 1.5]),
        values=np.linspace(-1.0, 1.0, 12),
    )
    width = (
        {"response_length": 4, "global_batch_size": 3} if name == "skyrl/batch-normalised" else {}
    )
    whole = plan("dr", stages={"advantage": name}, hyperparameters=width, batch="record")
    found = pipeline.evaluate(both, whole.objective({}, advantages_given=False)).advantage
    for at in (0, 1):
        rewards, values = both.rewards[3 * at :][:3], both.values[6 * at :][:6]
        alone = made(replace(BATCH, rewards=rewards, values=values), advantage=name, **width)
        np.testing.assert_array_equal(found[6 * at :][:6], alone.advantage)


def twice(batch: Batch) -> Batch:
    """Two records of the same responses."""
    columns = ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout", "entropies")
    return Batch(
        responses=Segments(np.tile(batch.responses.lengths, 2)),
        records=Segments(np.tile(batch.records.lengths, 2)),
        groups=np.concatenate([batch.groups, batch.groups + batch.group_count]),
        group_count=2 * batch.group_count,
        **{name: np.tile(getattr(batch, name), 2) for name in columns},
    )


def test_every_choice_says_what_it_does():
    for stage, known in STAGES.items():
        for name, choice in known.choices.items():
            assert choice.function.__doc__, (stage, name)
    group = STAGES["advantage"].choices["group-mean"]
    assert weighed(group).function.__doc__ == group.function.__doc__


def test_a_choice_is_the_same_in_whatever_order_and_type_its_numbers_come():
    clip = STAGES["surrogate"].choices["clip"]
    first = Bound("clip", clip, {"epsilon_low": 0, "epsilon_high": 1})
    second = Bound("clip", clip, {"epsilon_high": 1.0, "epsilon_low": 0.0})
    assert repr(first.key) == repr(second.key)


@pytest.mark.parametrize(("old", "said"), [(-709.6, "the sum over"), (-809.6, "not finite")])
def test_what_is_not_finite_is_told_with_its_record(old: float, said: str):
    """Three tokens of 9e307 in the second record's third response; or each beyond a double."""
    both = replace(twice(BATCH), advantages=np.full(6, -1.0))
    changed = both.log_probs_old.copy()
    changed[9:] = both.log_probs_new[9:] + old + 0.5
    batch = replace(both, log_probs_old=changed)
    objective = plan("dr").objective({}, advantages_given=True)
    with np.errstate(over="ignore"), pytest.raises(InputError, match=said) as told:
        pipeline.check_finite(pipeline.evaluate(batch, objective))
    assert told.value.record == 1
    assert told.value.path == "response 2" + ("" if "sum" in said else ", token 0")


def test_fipo_keeps_the_weight_of_unsafe_tokens_between_08_and_1():
    """f = e^−1, e^−0.1, e^0.1 and e, within 1 ∓ ½; besides 0.8 to 1 above the threshold, A < 0."""
    log_ratio, ones = np.array([-1.0, -0.1, 0.1, 1.0]), np.ones(4)
    bounds = {"fipo_clip_low": 0.5, "fipo_clip_high": 0.5, "fipo_decay_rate": 32.0}
    usual = {"epsilon_low": 0.2, "epsilon_high": 0.28, "delta": None, "dual_clip": None}

    def weights(advantage: float, threshold: float) -> object:
        found = fipo(
            ones, advantage * ones, log_ratio, Segments(np.ones(4, np.int64)),
            log_ratio_clamp=None, fipo_safety_threshold=threshold, **bounds, **usual,
        )  # fmt: skip
        assert same(found.grad_log_ratio, found.value) == "same"  # ρ = 1
        return found.value / advantage

    free = [0.5, math.exp(-0.1), math.exp(0.1), 1.5]
    assert same(weights(-1.0, 0.99), [0.8, math.exp(-0.1), 1.0, 1.0]) == "same"
    assert same(weights(-1.0, 1.0), free) == "same"
    assert same(weights(0.5, 0.99), free) == "same"


def test_a_value_in_which_records_differ_is_mixed_in_the_signature_of_all():
    own = {"epsilon_low": np.array([0.1, 0.1, 0.3])}
    objective = plan("dr").objective({"epsilon_low": 0.1}, advantages_given=False, varied=own)
    lows = [one.partition("clip[low=")[2].partition(",")[0] for one in objective.signatures(3)]
    assert lows == ["0.1", "0.1", "0.3"]
    assert "clip[low=mixed," in objective.signature
    assert "clip[low=0.1," in line(objective.parts_of(slice(0, 2)))
