"""NeMo-RL's advantages, KL estimates, mask and denominator.

The clamp of its importance-weighted KL estimates acts on the product. An estimate k(d), with
d = log π_θ − log π_ref, is an expectation under the policy that sampled; weighted with w = π_θ/π it
is one under π_θ, and has the score function in its gradient: ∂(w·k)/∂log π_θ = w·(k + k′).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.objective.advantage.batch import Advantage, of_every_function, over_batch
from grpo_cli.objective.advantage.group import group_mean, group_std, leave_one_out
from grpo_cli.objective.advantage.tokens import less_own_kl, whiten_floored
from grpo_cli.objective.arithmetic.exact_sums import row_offsets, row_sums
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import (
    ByToken,
    Composed,
    Usual,
    call,
    choice,
    parameters,
    reading,
)
from grpo_cli.objective.correction import (
    by_product,
    by_token,
    chain,
    importance,
    masked,
    own_by_mean,
    truncated,
)
from grpo_cli.objective.kl import Estimator, k1, k2, k3
from grpo_cli.objective.results import Correction, Kl, Moments, PerToken, Weights, per_token


def _bounds(*, advantage_clip_low: float | None, advantage_clip_high: float | None) -> None:
    """The bounds on A; None: none."""


def clipping(function: Callable[..., Advantage]) -> Composed:
    """An advantage held to NeMo-RL's advantage_clip_low and advantage_clip_high.

    References:
        NeMo-RL 7ea279a, ``_clip_grpo_advantages``, which clips the advantages of any estimator.
    """

    def run(columns: Mapping[str, Any], values: Mapping[str, Any]) -> Advantage:
        low, high = values["advantage_clip_low"], values["advantage_clip_high"]
        bounds = (-np.inf if low is None else low, np.inf if high is None else high)
        found: Advantage = call(function, columns, values)
        if isinstance(found, PerToken):
            return PerToken(np.clip(found.values, *bounds))
        return np.clip(found, *bounds)

    takes = parameters(function) | parameters(_bounds)
    returns = function.__annotations__["return"]
    return Composed(takes, run, function.__doc__, returns, getattr(function, "measure", None))


_UNCLIPPED: Usual = {"advantage_clip_low": None, "advantage_clip_high": None}

choice("advantage", "nemo-rl/group-std", std_ddof=1, std_eps=1e-6, std_min=0.0, **_UNCLIPPED)(
    clipping(group_std)
)
choice("advantage", "nemo-rl/leave-one-out", **_UNCLIPPED)(clipping(leave_one_out))
choice("advantage", "nemo-rl/group-mean", **_UNCLIPPED)(clipping(group_mean))


@choice("advantage", "nemo-rl/grpo", std_eps=1e-06, **_UNCLIPPED)
@clipping
def leave_one_out_std(rewards: F64, groups: Groups, *, std_eps: float) -> F64:
    """A = (r − m) / (s + eps), m and s being the mean and the std (ddof 1) of the others.

    If the others are all equal, s = 0 and there is no division: rewards [1, 0, 0, 0] give 1 and
    −0.577. If all rewards of a group are equal, A = 0.

    Args:
        advantage_clip_low, advantage_clip_high: bounds on A; None: none.

    References:
        NeMo-RL's GRPO with ``use_leave_one_out_baseline``, its default. AReaL's leave-one-out
        computes the std around the leave-one-out mean, so the factor G/(G−1) cancels.
    """
    return _against_others(rewards, groups, std_eps)


def _against_others(rewards: F64, groups: Groups, std_eps: float) -> F64:
    return groups.map(lambda rows: _each_against_others(rows, std_eps), rewards)


_TOGETHER = 1 << 18
"""Rewards that are compared at once: numpy's overhead is small, and so is memory."""
_LARGE = 256
"""Responses of a group from which on equal rewards are compared with the others once."""
_MOST = 1 << 22
"""Rewards of a group that are compared; beyond it, whole numbers add up the others."""


def _each_against_others(rows: F64, std_eps: float) -> F64:
    """[n, k] every element of [n, k] against the k − 1 others of its row."""
    count, size = rows.shape
    if size <= _LARGE:
        return _compared(rows, np.arange(rows.size), std_eps).reshape(rows.shape)
    found = np.empty_like(rows)
    for at in range(count):
        _, first, back = np.unique(rows[at], return_index=True, return_inverse=True)
        is_small = len(first) * size <= _MOST
        compared = _compared(rows[at : at + 1], first, std_eps) if is_small else None
        found[at] = _by_whole_numbers(rows[at], std_eps) if compared is None else compared[back]
    return found


def _compared(rows: F64, chosen: I64, std_eps: float) -> F64:
    """[m] the elements of [n, k] at these flat places against the others of their rows."""
    size = rows.shape[1]
    found = np.zeros(len(chosen))
    if size == 1:
        return found
    # A common offset changes nothing, and however large it is it must cost no digit.
    offsets = row_offsets(rows)
    for start in range(0, len(chosen), step := max(_TOGETHER // size, 1)):
        row, own = np.divmod(chosen[start : start + step], size)
        places = np.arange(size - 1) + (np.arange(size - 1) >= own[:, None])
        others = rows[row[:, None], places]
        alike = (others == others[:, :1]).all(axis=1)
        scores = _standardised(offsets[row, own], offsets[row[:, None], places], std_eps)
        found[start : start + step] = np.where(alike, rows[row, own] - others[:, 0], scores)
    found[(rows == rows[:, :1]).all(axis=1)[chosen // size]] = 0.0
    return found


def _by_whole_numbers(row: F64, std_eps: float) -> F64:
    """[k] each of many different rewards: the sums of the others are the whole row's less its own.

    All are whole numbers times a power of two, so nothing is lost: each is rounded once.
    """
    from fractions import Fraction  # slow to import

    offsets = row_offsets(row[None])[0]
    mantissas, exponents = np.frexp(offsets)
    least = int(exponents[offsets != 0.0].min()) - 53
    whole = [
        int(one) << (power - 53 - least) if one else 0
        for one, power in zip(np.ldexp(mantissas, 53).tolist(), exponents.tolist(), strict=True)
    ]
    others, total, squares = len(row) - 1, sum(whole), sum(one * one for one in whole)
    unit = Fraction(2) ** least
    means = [float(Fraction(total - one, others) * unit) for one in whole]
    spreads = [others * (squares - one * one) - (total - one) ** 2 for one in whole]
    variances = [float(Fraction(one, others * max(others - 1, 1)) * unit**2) for one in spreads]
    found: F64 = (offsets - np.array(means)) / (np.sqrt(variances) + std_eps)
    return found


def _standardised(own: F64, others: F64, std_eps: float) -> F64:
    """[m] one reward each, [m], against others [m, k − 1]."""
    count = others.shape[1]
    mean = row_sums(others) / count
    squares = row_sums(np.square(others - mean[:, None]))
    spread = np.sqrt(squares / max(count - 1, 1)) + std_eps
    with np.errstate(divide="ignore", invalid="ignore"):
        found: F64 = (own - mean) / spread
    return found


def _scaled(sums: F64, moments: Moments) -> F64:
    sigma = np.where(moments.count > 1.0, moments.std(1), 0.0)
    return (sums - moments.mean) / np.where(sigma > 0.0, sigma, 1.0)


def _sum(parts: list[F64], weights: F64 | None) -> F64:
    if weights is not None:
        parts = [weight * part for weight, part in zip(weights.tolist(), parts, strict=True)]
    return np.sum(parts, axis=0)


@choice("advantage", "nemo-rl/gdpo", std_eps=1e-6, **_UNCLIPPED)
@clipping
@over_batch(_scaled, each="response")
def gdpo(
    reward_columns: F64, groups: Groups, reward_weights: F64 | None = None, *, std_eps: float
) -> F64:
    """NeMo-RL's GDPO: reward functions group-normalised, added up, then (A − m)/σ over the batch.

    Follows NeMo-RL's recipe (use_leave_one_out_baseline false), so mean and σ of a group include
    all its responses. The second normalisation is over the responses of the batch, with ddof 1 and
    no eps; if σ is 0 there is no division.

    Args:
        moments: mean and std of the sums, over the responses of the batch.
        reward_weights: [K] what each counts in the sum; None: ones. NeMo-RL's are in the order of
            the functions' names.
        std_eps: added to the σ of each function in the group.

    References:
        GDPO, 2026 (arXiv 2601.05242). verl whitens over tokens and adds an eps.
    """
    parts = [
        group_std(column, groups, std_ddof=1, std_eps=std_eps, std_min=0.0)
        for column in of_every_function(reward_columns)
    ]
    return _sum(parts, reward_weights)


@choice("advantage", "nemo-rl/gdpo-leave-one-out", std_eps=1e-6, **_UNCLIPPED)
@clipping
@over_batch(_scaled, each="response")
def gdpo_leave_one_out(
    reward_columns: F64, groups: Groups, reward_weights: F64 | None = None, *, std_eps: float
) -> F64:
    """``nemo-rl/gdpo`` with each reward function normalised as in ``nemo-rl/grpo``.

    References:
        GDPO, 2026 (arXiv 2601.05242); NeMo-RL's default configuration, not its recipe.
    """
    every = of_every_function(reward_columns)
    return _sum([_against_others(column, groups, std_eps) for column in every], reward_weights)


@choice("advantage", "nemo-rl/opd", **_UNCLIPPED)
@clipping
def distilled(log_probs_old: F64, log_probs_ref: F64) -> PerToken:
    """A = log π_ref − log π_old at each token. The reference is the teacher; rewards are not used.

    References:
        MOPD, 2026 (arXiv 2601.02780), eq. 8; NeMo-RL's ``OPDAdvantageEstimator``.
    """
    return PerToken(log_probs_ref - log_probs_old)


@choice("advantage", "nemo-rl/reinforce_plus_plus-raw", **_UNCLIPPED)
@clipping
@over_batch(whiten_floored)
def plus_plus_raw(task_rewards: F64, token_penalty: F64, responses: Segments) -> Advantage:
    """``nemo-rl/reinforce_plus_plus`` without the baseline: r − β·kₜ, whitened over all tokens."""
    if not token_penalty.any():
        return task_rewards
    return PerToken(responses.spread(task_rewards) - token_penalty)


choice("advantage", "nemo-rl/reinforce_plus_plus", **_UNCLIPPED)(
    clipping(
        over_batch(
            whiten_floored,
            doc="NeMo-RL's REINFORCE++: r − r̄ − β·kₜ, whitened as (A − m)/√max(v, 1e-8), ddof 0.",
        )(less_own_kl)
    )
)


def on_policy(estimator: Estimator) -> Callable[..., Kl]:
    """The estimate with the weight π_θ/sg[π_θ]: its own value, and slope k + k′."""

    def penalty(
        log_ratio_ref: F64,
        *,
        beta: ByToken,
        kl_input_clamp: ByToken | None,
        kl_output_clamp: ByToken | None,
    ) -> Kl:
        del beta  # the pipeline multiplies by it
        ones = np.ones_like(log_ratio_ref)
        return _product(estimator, log_ratio_ref, ones, kl_input_clamp, kl_output_clamp)

    penalty.__doc__ = f"""NeMo-RL's {estimator.__name__}, weighted with π_θ/sg[π_θ]: slope k + k′.

    Where d is clamped, the slope is 0; where k is clamped, too.

    References:
        Tang and Munos, 2025 (arXiv 2506.09477), on the gradient.
    """
    return penalty


def from_rollout(estimator: Estimator) -> Callable[..., Kl]:
    """The estimate with the weight π_θ/π_rollout."""

    def penalty(
        log_ratio_ref: F64,
        log_probs_new: F64,
        log_probs_rollout: F64,
        *,
        beta: ByToken,
        kl_input_clamp: ByToken | None,
        kl_output_clamp: ByToken | None,
    ) -> Kl:
        del beta
        weight = np.exp(log_probs_new - log_probs_rollout)
        weight = np.where(np.isfinite(weight), weight, 0.0)
        return _product(estimator, log_ratio_ref, weight, kl_input_clamp, kl_output_clamp)

    penalty.__doc__ = f"""NeMo-RL's {estimator.__name__}, weighted with π_θ/π_rollout.

    NeMo-RL's ``use_on_policy_kl_approximation``. slime and TRL use the weight π_θ/π_old.
    """
    return penalty


def _product(
    estimator: Estimator,
    difference: F64,
    weight: F64,
    inside: ByToken | None,
    outside: ByToken | None,
) -> Kl:
    within = np.ones(len(difference), np.bool_)
    if inside is not None:
        within = np.abs(difference) <= inside
        difference = np.clip(difference, -inside, inside)
    estimate, slope = estimator(difference)
    value = weight * estimate
    if outside is not None:
        within &= np.abs(value) <= outside
        value = np.clip(value, -outside, outside)
    return Kl(value, np.where(within, weight * (estimate + slope), 0.0), None)


_CLAMPS: Usual = {"kl_input_clamp": 20.0, "kl_output_clamp": 10.0}

for _of in (k1, k2, k3):
    choice(
        "kl",
        f"nemo-rl/{_of.__name__}",
        stops_gradient="the weight π_θ/sg[π_θ] is 1 and has a slope",
        **_CLAMPS,
    )(on_policy(_of))
for _of in (k1, k2, k3):
    choice("kl", f"nemo-rl/{_of.__name__}-rollout", **_CLAMPS)(from_rollout(_of))


@choice("correction", "nemo-rl/seq-logprob-error", seq_logprob_error_threshold=1.5)
def log_prob_error(
    log_probs_old: F64,
    log_probs_rollout: F64,
    responses: Segments,
    *,
    seq_logprob_error_threshold: float,
) -> Correction:
    """Drops responses whose mean of exp|log π_old − log π_rollout| exceeds a threshold.

    Other responses have weight 1. Dropped responses do not count in the policy term, the KL and
    the denominators; the number of responses is that of ``nemo-rl/response-mean``. NeMo-RL also
    leaves them out of the whitening of its Reinforce++; here they count in it.

    Args:
        seq_logprob_error_threshold: on the scale of the metric ``token_mult_prob_error``, 1 where
            both agree.

    References:
        NeMo-RL 7ea279a, ``compute_and_apply_seq_logprob_error_masking``.
    """
    error = responses.mean(np.exp(np.abs(log_probs_rollout - log_probs_old)))
    kept = responses.spread(error <= seq_logprob_error_threshold)
    weight = kept.astype(np.float64)
    return Correction(weight, weight, kept)


for _name, _weigh in (
    ("token-truncate", by_token(truncated)),
    ("token-mask", by_token(masked)),
    ("geometric-mask", own_by_mean),
    ("sequence-truncate", by_product(truncated)),
    ("sequence-mask", by_product(masked)),
):
    choice(
        "correction",
        f"nemo-rl/on-policy-{_name}",
        stops_gradient="the weight is a constant",
        is_low=None,
        is_high=None,
    )(
        reading(
            importance(_weigh, ""),
            f"""``{_name}`` with π_θ/π_rollout, for ``force_on_policy_ratio``.

    The weight has no gradient. NeMo-RL takes the current policy for π_old there, also in its
    importance-sampling correction.

    References:
        NeMo-RL 7ea279a, ``ClippedPGLossFn``.
    """,
            log_probs_old="log_probs_new",
        )
    )
    choice(
        "correction",
        f"nemo-rl/seq-logprob-error-{_name}",
        seq_logprob_error_threshold=1.5,
        is_low=None,
        is_high=None,
    )(
        chain(
            f"""``nemo-rl/seq-logprob-error``, and ``{_name}`` of the responses that it keeps.

    Args:
        seq_logprob_error_threshold: as in ``nemo-rl/seq-logprob-error``.
        is_low, is_high: bounds of ``{_name}``; None: none.
    """,
            log_prob_error,
            importance(_weigh, ""),
        )
    )


@choice("aggregate", "nemo-rl/response-mean")
def nemo_response_mean(lengths: I64, responses: Segments) -> Weights:
    """NeMo-RL's ``response-mean``, which adds 1e-8 to the number of tokens of each response.

    A response that a correction takes out of the denominators does not count; one without tokens
    does. NeMo-RL also adds 1e-8 to the number of responses; this choice does not.
    """
    counts = ((lengths > 0) | (responses.lengths == 0)).astype(np.float64)
    numerator = per_token(lengths, 1e-8)
    return Weights(numerator, counts, 1.0, "responses, of token means (+ 1e-8)")
