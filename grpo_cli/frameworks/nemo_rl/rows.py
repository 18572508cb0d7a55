"""NeMo-RL's clipped policy-gradient loss and advantage estimators."""

from __future__ import annotations

from grpo_cli.objective.row import Row, executed, use, words

_READS = words(
    "epsilon_low epsilon_high dual_clip beta kl_input_clamp kl_output_clamp is_low is_high "
    "advantage_clip_low advantage_clip_high"
)
"""Of ClippedPGLossConfig and the clip of advantages (nemo_rl/algorithms/grpo.py); what is added to
stds and counts is a constant."""

GRPO = Row(
    title="NeMo-RL's grpo",
    paper="2402.03300",
    advantage=use("nemo-rl/grpo", std_eps=1e-6),
    ratio=use("token"),
    surrogate=use("clip", epsilon_low=0.2, epsilon_high=0.2),
    kl=use("nemo-rl/k3", beta=0.01, kl_input_clamp=20.0, kl_output_clamp=10.0),
    correction=use("none"),
    aggregate=use("token-mean"),
    reads=_READS,
    checked="executed",
    version="7ea279a (2026-08-22)",
    note="Mean and std exclude the response itself. If the other rewards are equal, there is no "
    "division: [1, 0, 0, 0] gives 1, −0.577, … For use_leave_one_out_baseline false, use "
    "--advantage nemo-rl/group-std; for normalize_rewards false, nemo-rl/leave-one-out or "
    "nemo-rl/group-mean. advantage_clip_low and …_high bound the advantages of every estimator. "
    "The KL is clamped, and its gradient includes the score function. For token_level_loss false, "
    "use --aggregate nemo-rl/response-mean; for seq_logprob_error_threshold, --correction "
    "nemo-rl/seq-logprob-error, or …-token-mask and the like with a correction as well. "
    "overlong_filtering, dynamic sampling, reward_scaling and reward_shaping change the data. "
    "Advantages of invalid tool calls and malformed thinking need a column that marks these "
    "tokens; positive_example_nll_weight is not covered.",
)

_UNTRUNCATED = {"is_low": None, "is_high": None}

ROWS = {
    "nemo-rl/grpo": GRPO,
    "nemo-rl/dapo": executed(
        GRPO,
        advantage=use("nemo-rl/group-std", std_ddof=1, std_eps=1e-6, std_min=0.0),
        surrogate=use("clip", epsilon_low=0.2, epsilon_high=0.28, dual_clip=10.0),
        kl=use("nemo-rl/k3", beta=0.0),
    ).named(
        "NeMo-RL's DAPO recipe",
        "Adds a dual clip at 10, which the paper does not have. NeMo-RL's newer recipes also "
        "clamp ρ at 2 (--correction token-truncate).",
        paper="2503.14476",
    ),
    "nemo-rl/gspo": executed(
        GRPO, ratio=use("sequence-eps"), aggregate=use("nemo-rl/response-mean")
    ).named(
        "NeMo-RL's GSPO",
        "NeMo-RL requires the response mean. ε is 0.2 by default; the paper's is 3e-4.",
        paper="2507.18071",
    ),
    "nemo-rl/gspo-is": executed(
        GRPO,
        ratio=use("sequence-eps"),
        correction=use("sequence-truncate", **_UNTRUNCATED),
        aggregate=use("nemo-rl/response-mean"),
    ).named(
        "NeMo-RL's GSPO with its importance-sampling correction",
        "The ratio is a geometric mean, but the correction's weight is the plain product over the "
        "response.",
        paper="2507.18071",
    ),
    "nemo-rl/cispo": executed(
        GRPO, surrogate=use("cispo", epsilon_low=0.2, epsilon_high=0.2)
    ).named(
        "NeMo-RL's CISPO",
        "The window is [0.8, 1.2] by default; NeMo-RL's guide recommends ε of 1.0 and 5.0, i.e. "
        "[0, 6].",
        paper="2506.13585",
    ),
    "nemo-rl/reinforce": executed(GRPO, surrogate=use("reinforce")).named(
        "NeMo-RL's REINFORCE (disable_ppo_ratio)",
        "NeMo-RL's metric probs_ratio then logs a mean log-prob.",
        paper="2402.14740",
    ),
    "nemo-rl/on-policy": executed(GRPO, ratio=use("on-policy")).named(
        "NeMo-RL's grpo with force_on_policy_ratio",
        "The ratio is always 1, so the policy term is the mean advantage. The importance-sampling "
        "correction then compares π_θ with the engine: use --correction nemo-rl/on-policy-"
        "token-truncate, …-token-mask or …-geometric-mask.",
    ),
    "nemo-rl/gdpo": executed(GRPO, advantage=use("nemo-rl/gdpo", std_eps=1e-6)).named(
        "NeMo-RL's GDPO",
        "Reward functions have equal weight unless reward_weights is set; NeMo-RL orders those by "
        "name. The last normalisation is over responses, with ddof 1 and no eps. This variant "
        "follows NeMo-RL's recipe, without leave-one-out; for its default configuration, use "
        "--advantage nemo-rl/gdpo-leave-one-out.",
        paper="2601.05242",
    ),
    "nemo-rl/reinforce_plus_plus": executed(
        GRPO,
        advantage=use("nemo-rl/reinforce_plus_plus"),
        kl=use("k3-in-reward", beta=0.01, kl_input_clamp=20.0, kl_output_clamp=10.0),
        reads=_READS - {"kl_input_clamp", "kl_output_clamp"},
    ).named(
        "NeMo-RL's Reinforce++ with baseline and the KL in the reward",
        "Each token has only its own KL, and the std has ddof 0. OpenRLHF sums the KL over the "
        "following tokens; slime whitens with ddof 1. The estimator clamps the KL at 20 and 10, "
        "whatever kl_input_clamp_value and kl_output_clamp_value are. For minus_baseline false, "
        "use --advantage nemo-rl/reinforce_plus_plus-raw.",
        paper="2501.03262",
    ),
    "nemo-rl/opd": executed(
        GRPO,
        advantage=use("nemo-rl/opd"),
        surrogate=use("reinforce"),
        kl=use("nemo-rl/k3", beta=0.0),
        correction=use("token-mask", is_low=0.5, is_high=5.0),
    ).named(
        "NeMo-RL's on-policy distillation (adv_estimator opd)",
        "log_probs_ref is the teacher's; rewards are not used. The variant has disable_ppo_ratio "
        "and icepop, as NeMo-RL recommends. NeMo-RL gives no bounds: they are nemo-rl/icepop's.",
        paper="2601.02780",
    ),
    "nemo-rl/grpo-is": executed(GRPO, correction=use("token-truncate", **_UNTRUNCATED)).named(
        "NeMo-RL's grpo with its importance-sampling correction",
        "The weight π_old/π_rollout has no bound by default; for tis, use -p is_high=2.",
    ),
    "nemo-rl/icepop": executed(GRPO, correction=use("token-mask", is_low=0.5, is_high=5.0)).named(
        "NeMo-RL's grpo with icepop",
        "Tokens outside the bounds get weight 0 and stay in the denominator.",
        paper="2510.18855",
    ),
    "nemo-rl/seq-mask-tis": executed(
        GRPO, correction=use("geometric-mask", is_low=0.999, is_high=1.002)
    ).named(
        "NeMo-RL's grpo with seq-mask-tis",
        "The geometric mean decides if a response is kept; its tokens are weighted by their own ρ.",
    ),
}
