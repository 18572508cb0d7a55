"""ROLL at commit 8eb27cc2 (2026-08-19), with the defaults of its workers.

The KL in the loss is always k3 with its output clamped to 10, aggregated as the policy term; its
coefficient is 0 by default.
"""

from __future__ import annotations

from grpo_cli.objective.row import Row, use, vary, words

_READS = words("epsilon_low epsilon_high dro_beta beta global_batch_size dp_size")
"""Of the pipeline's configuration, by ROLL's own names; ROLL's c follows its pg_clip."""

_PPO = Row(
    title="ROLL ActorWorker (PPO)",
    paper="1707.06347",
    version="8eb27cc2 (2026-08-18)",
    checked="golden",
    aliases=("roll/grpo",),
    advantage=use("group-std", std_ddof=1, std_eps=1e-6),
    ratio=use("token"),
    surrogate=use("clip"),
    kl=use("k3", beta=0.0, kl_output_clamp=10.0),
    correction=use("none"),
    aggregate=use("verl/seq-mean-token-mean"),
    entropy=use("bonus", entropy_coef=0.0),
    reads=_READS,
    note="The log ratio has no clamp. adv_estimator grpo always normalises by group; the norm "
    "types have no effect. ROLL's sum-norm does not average over responses: use --aggregate "
    "roll/seq-mean-token-sum-norm.",
)

ROWS = {
    "roll/ppo": _PPO,
    "roll/dual_clip": vary(
        _PPO, surrogate=use("clip", dual_clip=1.4), reads=_READS | {"dual_clip"}
    ).named(
        "ROLL ActorWorker with dual_clip_loss",
        "The dual clip is c = 1 + 2·pg_clip, 1.4 by default; verl's is 3.",
        paper="1912.09729",
    ),
    "roll/gspo": vary(_PPO, ratio=use("sequence")).named(
        "ROLL ActorWorker with importance_sampling seq (GSPO)",
        "The gradient flows through the mean of the log ratios; verl and SkyRL use GSPO-token's "
        "gradient. ROLL adds 1e-8 to the token count, which has no effect in float32.",
        paper="2507.18071",
    ),
    "roll/segment": vary(_PPO, checked="executed", ratio=use("roll/segment")).named(
        "ROLL's agentic ActorWorker with ratio_type segment",
        "A segment is a run of unmasked tokens, i.e. a turn. Without a mask it is the response, "
        "as in roll/gspo. For train_infer_correction, use --correction roll/train-infer.",
        paper="",
    ),
    "roll/agentic_reinforce": vary(
        _PPO,
        checked="executed",
        advantage=use("roll/agentic_reinforce"),
        reads=_READS | {"gamma"},
    ).named(
        "ROLL's agentic pipeline with adv_estimator agentic_reinforce",
        "The advantage is the normalised reward, discounted by gamma for each following segment. "
        "With gamma 1, the default, this is roll/ppo. Rewards are normalised with method mean_std "
        "and grouping traj_group_id.",
        paper="",
    ),
    "roll/step_reinforce": vary(
        _PPO,
        checked="executed",
        advantage=use("turn-group-std", gamma=0.95, turn_peers="group", std_ddof=1, std_eps=1e-6),
        reads=_READS | {"gamma"},
    ).named(
        "ROLL's agentic pipeline with adv_estimator step_reinforce",
        "The advantage is a step's discounted return, normalised over all steps of the group. "
        "Long trajectories have more weight in the mean and std. step_reward_gamma is -p gamma.",
        paper="",
    ),
    "roll/gigpo": vary(
        _PPO,
        checked="executed",
        advantage=use("gigpo", outcome_unit="turn"),
        reads=_READS | {"gamma"},
    ).named(
        "ROLL's agentic pipeline with adv_estimator gigpo",
        "Needs state_ids (ROLL's state_hash). A trajectory counts once per turn in the mean and "
        "std of episode scores; the paper counts it once (row gigpo). step_reward_gamma is "
        "-p gamma. Both weights, step_reward_weight and episode_reward_weight, are 1.",
        paper="2505.10978",
    ),
    "roll/vanilla": vary(_PPO, surrogate=use("reinforce")).named(
        "ROLL pg_variant vanilla (REINFORCE)",
        "The surrogate is log π_θ·A; π_old is not used.",
        paper="",
    ),
    "roll/tis": vary(_PPO, surrogate=use("cispo", epsilon_low=1.0, epsilon_high=0.0)).named(
        "ROLL pg_variant tis", "The weight is the ratio within [0, 1].", paper=""
    ),
    "roll/topr": vary(_PPO, checked="read", surrogate=use("roll/topr")).named(
        "ROLL pg_variant topr",
        "The sign of the raw reward, not of the advantage, decides if a response is good. Both "
        "kinds have weight 1.",
        paper="2503.14286",
    ),
    "roll/cispo": vary(_PPO, surrogate=use("cispo", epsilon_low=0.1, epsilon_high=0.1)).named(
        "ROLL pg_variant cispo",
        "The window is [0.9, 1.1]; verl's is [0.8, 1.2], SkyRL's [0, 5].",
        paper="2506.13585",
    ),
    "roll/kimi15": vary(_PPO, surrogate=use("dro", dro_beta=0.1)).named(
        "ROLL pg_variant kimi15", "verl's dro, with β = τ.", paper="2501.12599"
    ),
}
