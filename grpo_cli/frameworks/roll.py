"""ROLL at commit 8eb27cc2 (2026-08-19), with the defaults of its workers.

A segment is a run of tokens of a response between those that the mask takes out. The KL in the loss
is always k3 with its output clamped to 10, aggregated as the policy term; its coefficient is 0 by
default. Denominators span the global batch; apply_loss_scale, on by default, undoes the division by
micro-batches and ranks: roll/distributed/strategy/megatron_strategy.py, train_step.
"""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, I64, Segments, cut_turns
from grpo_cli.errors import InputError
from grpo_cli.frameworks.framework import Framework
from grpo_cli.objective.advantage.group import group_std
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.arithmetic.turns import TurnOrder
from grpo_cli.objective.choice import ByResponse, choice, table
from grpo_cli.objective.correction import within
from grpo_cli.objective.results import Correction, PerToken, Ratio, Surrogate, Weights, side
from grpo_cli.objective.row import Row, executed, use, words

TINY = 1e-8  # what ROLL adds to a count of tokens


def means(values: F64, cut: Segments) -> F64:
    """[N] the mean over each token's segment, Σ/(n + 1e-8)."""
    return cut.spread(cut.sum(values) / (cut.lengths + TINY))


@choice("advantage", "roll/agentic_reinforce", gamma=1.0)
def agentic_reinforce(
    rewards: F64, groups: Groups, turn_order: TurnOrder, *, gamma: float
) -> PerToken:
    """A = γ^k·(r − r̄)/(σ + 1e-6); k is the number of later segments (turns) of the response.

    r̄ and σ (ddof 1) are those of the group's rewards.

    References:
        ROLL 8eb27cc2, ``compute_agentic_reinforce_return``. ROLL subtracts a KL in the reward only
        at the last token of each segment.
    """
    scores = group_std(rewards, groups, std_ddof=1, std_eps=1e-6, std_min=0.0)
    owner = turn_order.response
    last = np.append(owner[1:] != owner[:-1], True)[: len(owner)]
    found = turn_order.returns(np.where(last, scores[owner], 0.0), gamma)
    return PerToken(turn_order.turns.spread(found))


@choice("ratio", "roll/segment")
def segment(token_log_ratio: F64, responses: Segments, positions: I64 | None = None) -> Ratio:
    """The geometric mean of ρ over the token's segment, a run of unmasked tokens.

    If tool tokens are masked, a segment is a turn. A filter of ``roll/train-infer`` cuts segments
    as the mask does. The gradient flows through the mean.

    Args:
        positions: [N] each token's place, masked ones included; None: nothing is masked, so that
            a response is one segment.

    References:
        ROLL 8eb27cc2, ``ratio_type: segment`` of its agentic pipeline.
    """
    cut = cut_turns(responses, None, positions)
    log_ratio = means(token_log_ratio, cut)
    return Ratio(log_ratio, np.exp(log_ratio), lambda slope: means(slope, cut))


@choice("surrogate", "roll/topr")
def roll_topr(
    ratio: F64, advantage: F64, log_probs_new: F64, task_rewards: F64, responses: Segments
) -> Surrogate:
    """ROLL's topr: s = A·log π_θ if the reward is > 0, else sg[min(ρ, 1)]·A·log π_θ.

    The raw reward decides, so rewards 0/1 and ±1 may give different losses for equal advantages.

    Args:
        ratio: [N] ρ, per token.

    References:
        Le Roux et al., TOPR, 2025 (arXiv 2503.14286).
    """
    failed = responses.spread(task_rewards <= 0.0)
    slope = np.where(failed, np.minimum(ratio, 1.0), 1.0) * advantage
    capped = failed & (ratio > 1.0) & (advantage != 0)
    return Surrogate(slope * log_probs_new, side(capped, np.zeros_like(capped)), None, slope)


@choice(
    "correction",
    "roll/train-infer",
    "roll/train_infer_correction",
    is_weight_type=None,
    is_high=None,
    filter_agg=None,
    ratio_low=None,
    ratio_high=None,
    diff_low=None,
    diff_high=None,
)
def train_infer(
    responses: Segments,
    log_probs_old: F64 | None = None,
    log_probs_rollout: F64 | None = None,
    positions: I64 | None = None,
    *,
    is_weight_type: str | None,
    is_high: float | None,
    filter_agg: str | None,
    ratio_low: float | None,
    ratio_high: float | None,
    diff_low: float | None,
    diff_high: float | None,
) -> Correction | None:
    """ROLL's train_infer_correction: c = min(ratio, is_high), or 0 outside the filter's bounds.

    Each level has a ratio and a difference π_old − π_rollout. Level token: those of the token.
    Levels segment and geometric: exp of the mean log ratio, and the mean difference, over the
    segment or response. Level sequence: exp of the sum of log ratios, and the sum of differences.
    The filter drops tokens whose ratio or difference at level ``filter_agg`` is out of bounds;
    they count in no denominator, ratio or segment. If ROLL's workers do the filtering
    (enable_old_logprobs_recompute false), ROLL changes only the denominator of the response. Not
    reproduced: ROLL's token-mean, which sums dropped tokens, and lists of several filters.

    Args:
        log_probs_old, log_probs_rollout: [N] the trainer's and the engine's, nats.
        is_weight_type: the weight's granularity; None: 1.
        is_high: its cap, ROLL's upper_bound; None: none.
        filter_agg: the filter's granularity, ROLL's agg_type; None: no filter.
        ratio_low, ratio_high: its bounds on the ratio; None: none.
        diff_low, diff_high: its bounds on the difference; None: none.

    References:
        ROLL 8eb27cc2, utils/train_infer_corrections.py.
    """
    if is_weight_type is None and filter_agg is None:
        return None
    if log_probs_old is None or log_probs_rollout is None:
        raise InputError(
            "missing; ROLL's train_infer_correction needs log-probs from the inference engine",
            path="log_probs_rollout",
            record=0,
        )
    log_ratio = log_probs_old - log_probs_rollout
    weight = np.ones(len(log_ratio))
    if is_weight_type is not None:
        ratio = np.exp(_at(log_ratio, is_weight_type, responses, positions))
        weight = np.minimum(ratio, np.inf if is_high is None else is_high)
    if filter_agg is None:
        return Correction(weight)
    ratio = np.exp(_at(log_ratio, filter_agg, responses, positions))
    moved = np.exp(log_probs_old) - np.exp(log_probs_rollout)
    difference = _at(moved, filter_agg, responses, positions)
    kept = within(ratio, ratio_low, ratio_high) & within(difference, diff_low, diff_high)
    return Correction(np.where(kept, weight, 0.0), kept.astype(np.float64), kept, unmasked=kept)


def _at(values: F64, level: str, responses: Segments, positions: I64 | None) -> F64:
    """[N] the values at a granularity."""
    if level == "token":
        return values
    if level == "sequence":
        return responses.spread(responses.sum(values))
    if level == "segment":
        return means(values, cut_turns(responses, None, positions))
    return responses.spread(responses.sum(values) / (responses.lengths + TINY))


@choice("aggregate", "roll/seq-mean-token-sum-norm", total=True)
def seq_mean_token_sum_norm(lengths: I64, *, response_length: ByResponse) -> Weights:
    """ROLL's sum-norm: token sum ÷ padded width, not divided by the number of responses."""
    return Weights(np.ones(len(lengths)), None, response_length, "response_length")


table("aggregate", "roll").aliases.update(
    {
        "roll/token-mean": "verl/token-mean",
        "roll/seq-mean-token-sum": "verl/seq-mean-token-sum",
        "roll/seq-mean-token-mean": "verl/seq-mean-token-mean",
    }
)


_READS = words(
    "epsilon_low epsilon_high dro_beta beta global_batch_size dp_size is_weight_type is_high "
    "filter_agg ratio_low ratio_high diff_low diff_high"
)
"""Of the pipeline's configuration, by ROLL's own names; ROLL's c follows its pg_clip."""

_PPO = Row(
    title="ROLL ActorWorker (PPO)",
    paper="1707.06347",
    version="8eb27cc2 (2026-08-18)",
    checked="executed",
    aliases=("roll/grpo",),
    advantage=use("group-std", std_ddof=1, std_eps=1e-6),
    ratio=use("token"),
    surrogate=use("clip"),
    kl=use("k3", beta=0.0, kl_output_clamp=10.0),
    correction=use("roll/train-infer"),
    aggregate=use("verl/seq-mean-token-mean"),
    entropy=use("bonus", entropy_coef=0.0),
    reads=_READS,
    note="The log ratio has no clamp. adv_estimator grpo always normalises by group; the norm "
    "types have no effect; a group of one is NaN in ROLL and 0 here. ROLL's sum-norm does not "
    "average over responses: use --aggregate roll/seq-mean-token-sum-norm. train_infer_correction "
    "is off unless is_weight_type or filter_agg is set.",
)

_AGENTIC = executed(_PPO, reads=_READS | {"gamma"})

ROWS = {
    "roll/ppo": _PPO,
    "roll/dual_clip": executed(
        _PPO, surrogate=use("clip", dual_clip=1.4), reads=_READS | {"dual_clip"}
    ).named(
        "ROLL ActorWorker with dual_clip_loss",
        "The dual clip is c = 1 + 2·pg_clip, 1.4 by default; verl's is 3.",
        paper="1912.09729",
    ),
    "roll/gspo": executed(_PPO, ratio=use("sequence")).named(
        "ROLL ActorWorker with importance_sampling seq (GSPO)",
        "The gradient flows through the mean of the log ratios; verl and SkyRL use GSPO-token's "
        "gradient. ROLL adds 1e-8 to the token count, which has no effect in float32.",
        paper="2507.18071",
    ),
    "roll/segment": executed(_PPO, ratio=use("roll/segment")).named(
        "ROLL's agentic ActorWorker with ratio_type segment",
        "A segment is a run of unmasked tokens, i.e. a turn. Without a mask it is the response, "
        "as in roll/gspo.",
        paper="",
    ),
    "roll/agentic_reinforce": executed(_AGENTIC, advantage=use("roll/agentic_reinforce")).named(
        "ROLL's agentic pipeline with adv_estimator agentic_reinforce",
        "The advantage is the normalised reward, discounted by gamma for each following segment. "
        "With gamma 1, the default, this is roll/ppo. Rewards are normalised with method mean_std "
        "and grouping traj_group_id.",
        paper="",
    ),
    "roll/step_reinforce": executed(
        _AGENTIC,
        advantage=use("turn-group-std", gamma=0.95, turn_peers="group", std_ddof=1, std_eps=1e-6),
    ).named(
        "ROLL's agentic pipeline with adv_estimator step_reinforce",
        "The advantage is a step's discounted return, normalised over all steps of the group. "
        "Long trajectories have more weight in the mean and std. step_reward_gamma is -p gamma.",
        paper="",
    ),
    "roll/gigpo": executed(_AGENTIC, advantage=use("gigpo", outcome_unit="turn")).named(
        "ROLL's agentic pipeline with adv_estimator gigpo",
        "Needs state_ids (ROLL's state_hash). A trajectory counts once per turn in the mean and "
        "std of episode scores; the paper counts it once (variant gigpo). step_reward_gamma is "
        "-p gamma. Both weights, step_reward_weight and episode_reward_weight, are 1.",
        paper="2505.10978",
    ),
    "roll/vanilla": executed(_PPO, surrogate=use("reinforce")).named(
        "ROLL pg_variant vanilla (REINFORCE)",
        "The surrogate is log π_θ·A; π_old is not used.",
        paper="",
    ),
    "roll/tis": executed(_PPO, surrogate=use("cispo", epsilon_low=1.0, epsilon_high=0.0)).named(
        "ROLL pg_variant tis", "The weight is the ratio within [0, 1].", paper=""
    ),
    "roll/topr": executed(_PPO, surrogate=use("roll/topr")).named(
        "ROLL pg_variant topr",
        "The sign of the raw reward, not of the advantage, decides if a response is good. Both "
        "kinds have weight 1.",
        paper="2503.14286",
    ),
    "roll/cispo": executed(_PPO, surrogate=use("cispo", epsilon_low=0.1, epsilon_high=0.1)).named(
        "ROLL pg_variant cispo",
        "The window is [0.9, 1.1]; verl's is [0.8, 1.2], SkyRL's [0, 5].",
        paper="2506.13585",
    ),
    "roll/kimi15": executed(_PPO, surrogate=use("dro", dro_beta=0.1)).named(
        "ROLL pg_variant kimi15", "verl's dro, with β = τ.", paper="2501.12599"
    ),
}


FRAMEWORK = Framework(name="roll", rows=ROWS, accumulation="whole step")
