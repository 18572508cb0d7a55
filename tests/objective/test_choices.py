"""Choices that no paper's row uses, and what every choice says when it cannot work."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from files import each
from rows import ESTIMATES, STAGES, HyperparameterError, on, plan

from grpo_cli import InputError
from grpo_cli.batch import Batch, Segments
from grpo_cli.objective import pipeline
from grpo_cli.objective.advantage.weighed import weighed
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.signature import line
from grpo_cli.objective.surrogate.clip import window
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


def evaluate(batch: Batch = BATCH, variant: str = "dr", **choices: object) -> Breakdown:
    """``choices`` are stages; whatever else is a hyperparameter."""
    return on(batch, variant, **choices)


def close(found: object, wanted: object) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-14, atol=1e-15)


# ---- advantages --------------------------------------------------------------------------------


def test_batch_whiten_counts_responses():
    # offsets ½, −½, 0: mean 0, σ² = ½ / 2
    found = evaluate(advantage="batch-whiten", std_eps=0.0)
    close(found.response_advantage, [1.0, -1.0, 0.0])


def test_token_whiten_counts_tokens():
    # ½ twice, −½ once, 0 three times: mean 1/12, Σ(x − mean)² = ¾ − 6/144
    found = evaluate(advantage="token-whiten", std_eps=0.0)
    sigma = math.sqrt((0.75 - 6 / 144) / 5)
    # the lone response's own offset is 0, but the batch's mean is not
    close(
        found.response_advantage, [(0.5 - 1 / 12) / sigma, (-0.5 - 1 / 12) / sigma, -1 / 12 / sigma]
    )


def test_returns_are_discounted_from_the_last_token():
    close(evaluate(advantage="returns", gamma=0.5).advantage, [0.5, 1.0, 0.0, 0.125, 0.25, 0.5])


def test_returns_pay_for_the_kl_to_come():
    found = evaluate(advantage="returns", kl="k1-in-reward", beta=0.5, gamma=1.0)
    # d = −0.2 0.1 | 0.3 | −0.1 0.3 0
    close(found.advantage, [1.05, 0.95, -0.15, 0.4, 0.35, 0.5])


def test_lone_response_has_no_batch_std():
    alone = Batch(
        responses=Segments(np.array([1])),
        records=Segments(np.array([1])),
        groups=np.array([0]),
        group_count=1,
        log_probs_new=np.array([-1.0]),
        log_probs_old=np.array([-1.5]),
        rewards=np.array([3.0]),
    )
    names = ("batch-std", "batch-whiten", "token-whiten", "leave-one-out", "live-mean", "pass-at-k")
    for name in (*names, "max-rl", "length-weighted", "decoupled", "returns-whiten"):
        assert evaluate(alone, advantage=name).advantage.tolist() == [0.0], name


@pytest.mark.parametrize("name", ["batch-std", "batch-whiten", "returns-whiten"])
def test_std_ddof_must_be_less_than_the_batch(name: str):
    with pytest.raises(HyperparameterError, match="std_ddof: expected less than the"):
        evaluate(advantage=name, std_ddof=6)


# ---- KL ----------------------------------------------------------------------------------------

TO_REF = BATCH.log_probs_old - BATCH.log_probs_ref


@pytest.mark.parametrize("name", ESTIMATES)
def test_kl_in_the_reward_is_off_the_reward(name: str):
    found = evaluate(kl=f"{name}-in-reward", beta=0.5)
    spent = 0.5 * BATCH.responses.sum(ESTIMATES[name](TO_REF))
    wanted = evaluate(replace(BATCH, rewards=BATCH.rewards - spent))
    close(found.record_objective, wanted.record_objective)
    close(found.gradient, wanted.gradient)
    assert found.kl is None
    assert found.beta == 0.0


def test_kl_in_the_reward_needs_the_reference():
    with pytest.raises(InputError, match=r"log_probs_ref: missing; the kl stage \(k1-in-reward\)"):
        evaluate(replace(BATCH, log_probs_ref=None), kl="k1-in-reward", beta=0.5)


def test_kl_in_the_reward_may_be_switched_off_without_one():
    found = evaluate(replace(BATCH, log_probs_ref=None), variant="rloo", beta=0.0)
    assert np.isfinite(found.record_objective).all()


# ---- correction --------------------------------------------------------------------------------


def test_bounds_of_a_mask_are_inclusive():
    exact = replace(BATCH, log_probs_rollout=BATCH.log_probs_old)
    kept = evaluate(exact, correction="token-mask", is_low=1.0, is_high=1.0)
    assert kept.correction.tolist() == [1.0] * 6


def test_off_policy_mask_drops_losing_responses_only():
    # Response 1 has A < 0: the engine is 1.3 nats behind π_θ there, π_old 0; response 0 has A > 0.
    far = replace(BATCH, log_probs_rollout=BATCH.log_probs_rollout + 2.0)
    found = evaluate(far, correction="off-policy-mask", off_policy_mask_threshold=0.1)
    assert found.correction.tolist() == [1, 1, 0, 1, 1, 1]
    near = evaluate(correction="off-policy-mask", off_policy_mask_threshold=0.1)
    assert near.correction.tolist() == [1] * 6
    old = evaluate(far, correction="off-policy-mask-old", off_policy_mask_threshold=0.1)
    assert old.correction.tolist() == [1] * 6
    strict = evaluate(far, correction="off-policy-mask-old", off_policy_mask_threshold=-0.1)
    assert strict.correction.tolist() == [1, 1, 0, 1, 1, 1]


@pytest.mark.parametrize("name", ["token-truncate", "sequence-mask", "off-policy-mask"])
def test_correction_needs_the_engine_s_log_probs(name: str):
    with pytest.raises(InputError, match=rf"log_probs_rollout: missing.* \({name}\)"):
        evaluate(replace(BATCH, log_probs_rollout=None), correction=name)


# ---- the rest ----------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregate", ["token-mean", "response-mean", "token-sum"])
def test_entropy_bonus_is_aggregated_like_the_policy(aggregate: str):
    plain = evaluate(aggregate=aggregate)
    found = evaluate(aggregate=aggregate, entropy_coef=0.1)
    bonus = 0.1 * np.repeat(plain.weight, [2, 1, 3]) * BATCH.entropies
    close(found.contribution, plain.contribution + bonus)
    close(found.record_objective, plain.record_objective + bonus.sum())
    close(found.gradient, plain.gradient)
    assert "ent:bonus[entropy_coef=0.1]" in found.objective.signature


def test_entropy_bonus_needs_entropies():
    with pytest.raises(InputError, match="entropies: missing"):
        evaluate(replace(BATCH, entropies=None), entropy_coef=0.1)


def test_clip_cov_needs_a_seed():
    with pytest.raises(InputError, match="clip_cov_seed: missing; clip-cov needs it"):
        evaluate(variant="clip-cov")


def test_clip_cov_s_choice_is_the_seed_s():
    chosen = {
        tuple(
            evaluate(
                variant="clip-cov",
                clip_cov_seed=seed,
                clip_cov_ratio=0.2,
                clip_cov_lb=-5.0,
                epsilon=9.0,
            ).surrogate.tolist()
        )
        for seed in range(20)
    }
    assert len(chosen) > 1


@each("aggregate", ["response-mean", "token-sum", "token-mean", "prompt-mean"])
@each("correction", ["none", "token-truncate"])
@each("variant", ["real", "gmpo", "gspo"])
def test_coupled_tokens_keep_the_exact_gradient(variant: str, correction: str, aggregate: str):
    """Under weights and corrections that differ between the tokens that are coupled."""
    direction = np.array([0.3, -0.7, 0.2, 0.9, -0.4, 0.5])
    chosen = {"variant": variant, "correction": correction, "aggregate": aggregate}
    batch = replace(BATCH, groups=np.array([0, 0, 0]), group_count=1)
    found = evaluate(batch, **chosen)
    above, below = (
        evaluate(replace(batch, log_probs_new=batch.log_probs_new + s * direction), **chosen)
        for s in (1e-6, -1e-6)
    )
    slope = (above.record_objective[0] - below.record_objective[0]) / 2e-6
    assert abs(found.gradient @ direction - slope) < 1e-9


@each("surrogate", ["clip", "ce-gppo"])
def test_the_dual_clip_cuts_a_token_and_counts_as_an_upper_bound(surrogate: str):
    """A = −½ at ratios of e^0.1 and e^−0.2."""
    batch = replace(BATCH, rewards=np.array([0.0, 1.0, 0.5]))
    found = evaluate(batch, surrogate=surrogate, dual_clip=1.05, epsilon=0.3)
    assert found.clip.tolist() == [1, 0, 0, 0, 0, 0]
    close(found.surrogate[:2], [-0.5 * 1.05, -0.5 * math.exp(-0.2)])
    assert found.gradient[0] == 0.0


def test_bapo_takes_the_first_upper_bound_that_is_enough():
    """½·(h + h) ≥ 3.1 · ½·1 from h = 1.6 on, of 1.2, 1.3, …: ρ = 3 where A = ½, and 1 where −½."""
    ratio = np.log([3.0, 3.0, 1.0, 1.0, 1.0, 1.0])
    batch = replace(BATCH, log_probs_old=BATCH.log_probs_new - ratio)
    bounds = {"bapo_high_start": 1.2, "bapo_high_max": 3.0, "bapo_high_step": 0.1}
    found = evaluate(batch, variant="bapo", advantage="group-mean", bapo_target=3.1, **bounds)
    np.testing.assert_allclose(found.surrogate[:3], [0.8, 0.8, -0.5], rtol=1e-12)


@each("surrogate", ["skyrl/dppo_tv", "skyrl/dppo_kl"])
def test_skyrl_s_dppo_drops_tokens_that_moved_away_on_either_side(surrogate: str):
    """The engine's log-probs are −0.9 −0.6 | −2.0: A < 0 at a rise and a fall, A > 0 at a rise."""
    batch = replace(BATCH, rewards=np.array([0.0, 1.0, 0.5]))
    tiny = {"divergence_low": 1e-6, "divergence_high": 1e-6}
    found = evaluate(batch, surrogate=surrogate, **tiny)
    assert found.clip[:3].tolist() == [0, -1, 1]
    assert (found.surrogate[:3] == 0.0).tolist() == [False, True, True]


def test_dppo_survives_certain_tokens():
    certain = replace(
        BATCH,
        log_probs_new=np.array([0.0, -1.0, 0.0, -0.2, -1.1, -800.0]),
        log_probs_old=np.array([0.0, 0.0, -0.7, -0.3, -800.0, -0.5]),
    )
    for variant in ("dppo-tv", "dppo-kl"):
        assert np.isfinite(evaluate(certain, variant=variant).gradient).all()


def test_sapo_and_vespo_survive_huge_ratios():
    huge = replace(BATCH, log_probs_old=np.full(6, -2000.0))
    for variant in ("sapo", "vespo"):
        found = evaluate(huge, variant=variant)
        assert np.isfinite(found.record_objective).all()
        close(found.gradient, np.zeros(6))


def test_bapo_does_not_try_millions_of_bounds():
    with pytest.raises(HyperparameterError, match="bapo_low_step: expected 0 or at least 3e-05"):
        evaluate(variant="bapo", bapo_low_step=1e-12)
    evaluate(variant="bapo", bapo_low_step=1e-4)  # three thousand from 0.6 to 0.9
    same = evaluate(variant="bapo", bapo_low_step=0.0, bapo_high_step=0.0)
    close(same.surrogate, evaluate(variant="bapo", bapo_low_max=0.6, bapo_high_max=1.2).surrogate)


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
    made = plan("dr", stages={"advantage": name}, hyperparameters=width, batch="record")
    found = pipeline.evaluate(both, made.objective({}, advantages_given=False)).advantage
    for at in (0, 1):
        rewards, values = both.rewards[3 * at :][:3], both.values[6 * at :][:6]
        alone = evaluate(replace(BATCH, rewards=rewards, values=values), advantage=name, **width)
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


def test_on_the_bound_is_inside():
    """torch.clamp passes the gradient on there, and TRL counts ``>`` and ``<``."""
    ratio, sign = np.array([1.5, 1.5, 0.5, 0.5]), np.array([1.0, -1.0, 1.0, -1.0])
    half, more = np.full(4, 0.5), np.full(4, 1.5)
    found = window(ratio, sign, half, more)
    np.testing.assert_array_equal(found.value, ratio * sign)
    np.testing.assert_array_equal(found.grad_log_ratio, ratio * sign)
    assert not found.clip.any()
    beyond = window(np.nextafter([1.5, 0.5], [2.0, 0.0]), sign[:2], half[:2], more[:2])
    np.testing.assert_array_equal(beyond.grad_log_ratio, 0.0)
    assert beyond.clip.tolist() == [1, -1]


def test_real_is_0_in_a_group_that_is_all_good_or_all_bad():
    batch = replace(BATCH, rewards=np.array([1.0, 2.0, -1.0]))
    found = evaluate(batch, "real", advantage="raw")
    assert not found.surrogate.any()
    assert not found.gradient.any()
    assert evaluate(replace(batch, rewards=np.array([1.0, -2.0, -1.0])), "real").surrogate.any()


def test_topr_marks_the_weights_that_it_caps():
    """Those of A < 0 beyond 1; a ratio of 1 is not one of them."""
    batch = replace(BATCH, log_probs_new=BATCH.log_probs_old + np.log([2.0, 0.5, 1.1, 1.0, 0.9, 1]))
    for sign, marks in ((1.0, [0] * 6), (-1.0, [1, 0, 1, 0, 0, 0])):
        given = replace(batch, rewards=np.full(3, sign))
        assert evaluate(given, "topr", ratio="token", advantage="raw").clip.tolist() == marks


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
    made = plan("dr").objective({}, advantages_given=True)
    with np.errstate(over="ignore"), pytest.raises(InputError, match=said) as told:
        pipeline.check_finite(pipeline.evaluate(batch, made))
    assert told.value.record == 1
    assert told.value.path == "response 2" + ("" if "sum" in said else ", token 0")


@each("threshold", ["0.5_2.0", "2.0"])  # without a lower bound it is 1 / 2.0
@pytest.mark.parametrize(
    ("name", "counts"), [("verl/decoupled", [2, 0, 3]), ("verl/bypass", [2, 1, 3])]
)
def test_whether_the_kl_counts_what_verl_rejects(name: str, counts: list[int], threshold: str):
    """Its response mask loses e^1.3; in bypass mode the policy loss alone does."""
    bounds = {"rollout_rs": "token_k1", "rollout_rs_threshold": threshold}
    found = evaluate(correction=name, kl="k3", beta=1.0, aggregate="token-mean", **bounds)
    assert found.policy.weights.counts.tolist() == [2, 0, 3]
    assert found.term("kl").weights.counts.tolist() == counts


# ---- FIPO ---------------------------------------------------------------------------------------


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
        close(found.grad_log_ratio, found.value)  # ρ = 1
        return found.value / advantage

    free = [0.5, math.exp(-0.1), math.exp(0.1), 1.5]
    close(weights(-1.0, 0.99), [0.8, math.exp(-0.1), 1.0, 1.0])
    close(weights(-1.0, 1.0), free)
    close(weights(0.5, 0.99), free)


def test_a_value_in_which_records_differ_is_mixed_in_the_signature_of_all():
    own = {"epsilon_low": np.array([0.1, 0.1, 0.3])}
    objective = plan("dr").objective({"epsilon_low": 0.1}, advantages_given=False, varied=own)
    lows = [one.partition("clip[low=")[2].partition(",")[0] for one in objective.signatures(3)]
    assert lows == ["0.1", "0.1", "0.3"]
    assert "clip[low=mixed," in objective.signature
    assert "clip[low=0.1," in line(objective.parts_of(slice(0, 2)))
