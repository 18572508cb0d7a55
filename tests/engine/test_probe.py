"""The batch that tells conventions apart has what it is said to have, and lacks what is taken."""

from __future__ import annotations

import numpy as np
import pytest

from grpo_cli.engine.probe import (
    probe,
    same,
)
from grpo_cli.objective.inputs import Inputs
from grpo_cli.variants import STAGES
from grpo_cli.variants.plan import plan


def test_its_responses():
    """Lengths are 1 + 5n mod 9: all of 1 to 9."""
    made = probe()
    assert made.responses.lengths.tolist() == [1, 6, 2, 7, 3, 8, 4, 9, 5, 1, 6, 2, 7, 3]
    assert made.records.lengths.tolist() == [8, 6]
    assert made.groups.tolist() == [0] * 3 + [1] * 5 + [2] * 2 + [3] * 4


def test_its_rewards():
    first = [1.0, 0.21, 0.42, 3.26, 0.0, 0.42, 2.84, 1.26]
    assert probe().rewards[:8].tolist() == pytest.approx(first)
    for made in (probe(), probe(plain=True)):
        assert made.advantages.tolist() == pytest.approx((made.rewards - 0.3).tolist())
    spreads = [probe().rewards[probe().groups == group].std() for group in range(4)]
    assert len({round(one, 9) for one in spreads}) == 4


@pytest.mark.parametrize("tail", [2.0, 11.0, 25.0])
@pytest.mark.parametrize("probable", [False, True])
def test_every_seventh_ratio_is_far_off(tail, probable):
    made = probe(tail=tail, probable=probable)
    new, old = made.log_probs_new, made.log_probs_old
    pairs = [(new, old, 1), (made.log_probs_ref, new, 3), (made.log_probs_rollout, old, 5)]
    for one, other, offset in pairs:
        assert max(one.max(), other.max()) <= (-0.01 if probable else 0.0)
        away = one - other
        place = np.arange(len(away)) % 7
        usual = away[(place != offset) & (place != (offset + 1) % 7)]
        assert np.abs(usual).max() <= 1.0 + 1e-12
        assert usual.std() > 0.1
        down = away[place == (offset + 1) % 7]
        if not probable:
            assert away[place == offset] == pytest.approx(tail)
            assert down == pytest.approx(-tail)
        assert np.abs(away).max() <= tail + 1e-9
    likely = np.exp(old).max()
    assert likely > 0.75 if probable else likely < 0.01


@pytest.mark.parametrize(
    ("left", "right", "are"),
    [
        *[(1.0, 1.0 + 0.9e-7, True), (1.0, 1.0 + 1.1e-7, False), (-2.0, -2.0 - 1.9e-7, True)],
        *[(2.0, 2.0 + 2.1e-7, False), (0.0, 4.9e-8, True), (0.0, 5.1e-8, False)],
        *[(1.0, -1.0, False), (None, None, False), (None, 1.0, False)],
    ],
)
def test_what_is_one_value(left, right, are):
    assert same(left, right) is are
    assert same(right, left) is are


def objective(variant, **stages):
    return plan(variant, stages=stages, hyperparameters={}).objective({}, advantages_given=False)


def scales(surrogate):
    """Whether s(ρ, A) is |A| times its value for A of its sign, on the probe."""
    batch, inputs = probe(), Inputs(probe())
    stages, seed = {"surrogate": surrogate}, {"clip_cov_seed": 1}
    made = plan("grpo", stages=stages, hyperparameters=seed, strict=False)
    made = made.objective({}, advantages_given=False)
    found = inputs.call(made.ratio, "ratio")
    inputs["log_ratio"], inputs["ratio"] = found.log_ratio, found.ratio
    numbers = np.arange(batch.responses.count)
    signs, sizes = np.where(numbers % 2 > 0, -1.0, 1.0), 0.3 + numbers

    def sums(advantages):
        inputs["response_advantage"] = advantages
        inputs["advantage"] = batch.responses.spread(advantages)
        return batch.responses.sum(inputs.call(made.surrogate, "surrogate").value)

    of_sign = np.where(signs > 0, sums(np.ones(len(signs))), sums(-np.ones(len(signs))))
    return np.allclose(sums(signs * sizes), of_sign * sizes, rtol=1e-9, atol=1e-12)


def test_which_surrogates_are_multiples_of_the_advantage():
    """``match`` evaluates those for A of 1 and −1 alone."""
    choices = STAGES["surrogate"].choices
    assert {name for name in choices if not scales(name)} == {
        name for name, choice in choices.items() if not choice.scales
    }
