"""NeMo-RL's clipped policy-gradient loss and advantage estimators."""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.objective.row import Row, use

_READS = frozenset(
    {
        *("epsilon_low", "epsilon_high", "dual_clip"),
        *("beta", "kl_input_clamp", "kl_output_clamp"),
        *("is_low", "is_high", "advantage_clip_low", "advantage_clip_high"),
    }
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
    note="Mean and std leave the response itself out, and where the others are equal nothing is "
    "divided: [1, 0, 0, 0] gives 1, −0.577, … With use_leave_one_out_baseline false it is "
    "--advantage group-std, with normalize_rewards false --advantage leave-one-out, or group-mean. "
    "The KL is clamped, and has the score function in its gradient. token_level_loss false is "
    "--aggregate nemo-rl/response-mean, seq_logprob_error_threshold --correction "
    "nemo-rl/seq-logprob-error. overlong_filtering and dynamic sampling are the data's masks and "
    "prompts, reward_scaling and reward_shaping its rewards. Advantages of invalid tool calls and "
    "malformed thinking need a column that says which tokens those are; "
    "positive_example_nll_weight, a loss beside these, is not served.",
)

_UNTRUNCATED = {"is_low": None, "is_high": None}

ROWS = {
    "nemo-rl/grpo": GRPO,
    "nemo-rl/dapo": replace(
        GRPO,
        title="NeMo-RL's DAPO recipe",
        paper="2503.14476",
        advantage=use("group-std", std_ddof=1, std_eps=1e-6, std_min=0.0),
        surrogate=use("clip", epsilon_low=0.2, epsilon_high=0.28, dual_clip=10.0),
        kl=use("nemo-rl/k3", beta=0.0),
        note="With a dual clip at 10, which the paper does not have. Its newer recipes clamp ρ at "
        "2 besides (--correction token-truncate).",
    ),
    "nemo-rl/gspo": replace(
        GRPO,
        title="NeMo-RL's GSPO",
        paper="2507.18071",
        ratio=use("sequence-eps"),
        aggregate=use("nemo-rl/response-mean"),
        note="Requires the response mean. ε is 0.2 unless asked otherwise, the paper's is 3e-4.",
    ),
    "nemo-rl/gspo-is": replace(
        GRPO,
        title="NeMo-RL's GSPO with its importance-sampling correction",
        paper="2507.18071",
        ratio=use("sequence-eps"),
        correction=use("sequence-truncate", **_UNTRUNCATED),
        aggregate=use("nemo-rl/response-mean"),
        note="The ratio is a geometric mean but the weight the plain product over the response.",
    ),
    "nemo-rl/cispo": replace(
        GRPO,
        title="NeMo-RL's CISPO",
        paper="2506.13585",
        surrogate=use("cispo", epsilon_low=0.2, epsilon_high=0.2),
        note="The window is [0.8, 1.2] by default; its guide advises 1.0 and 5.0, i.e. [0, 6].",
    ),
    "nemo-rl/reinforce": replace(
        GRPO,
        title="NeMo-RL's REINFORCE (disable_ppo_ratio)",
        paper="2402.14740",
        surrogate=use("reinforce"),
        note="Its metric probs_ratio is then a mean log-prob.",
    ),
    "nemo-rl/on-policy": replace(
        GRPO,
        title="NeMo-RL's grpo with force_on_policy_ratio",
        ratio=use("on-policy"),
        note="The ratio is 1 by construction, so the policy term is the mean advantage.",
    ),
    "nemo-rl/gdpo": replace(
        GRPO,
        title="NeMo-RL's GDPO",
        paper="2601.05242",
        advantage=use("nemo-rl/gdpo", std_eps=1e-6),
        note="Reward functions count equally, or by reward_weights, which NeMo-RL has in the order "
        "of their names; the last normalisation is over responses, ddof 1, "
        "without eps. As its recipe has it, without leaving out; the default configuration would "
        "(--advantage nemo-rl/gdpo-leave-one-out).",
    ),
    "nemo-rl/reinforce_plus_plus": replace(
        GRPO,
        title="NeMo-RL's Reinforce++ with baseline and the KL in the reward",
        paper="2501.03262",
        advantage=use("nemo-rl/reinforce_plus_plus"),
        kl=use("k3-in-reward", beta=0.01, kl_input_clamp=20.0, kl_output_clamp=10.0),
        note="Each token bears its own KL, and is whitened with ddof 0; OpenRLHF sums the KL over "
        "the tokens to come, slime whitens with ddof 1. minus_baseline false is "
        "--advantage nemo-rl/reinforce_plus_plus-raw.",
    ),
    "nemo-rl/opd": replace(
        GRPO,
        title="NeMo-RL's on-policy distillation (adv_estimator opd)",
        paper="2601.02780",
        advantage=use("nemo-rl/opd"),
        surrogate=use("reinforce"),
        kl=use("nemo-rl/k3", beta=0.0),
        correction=use("token-mask", is_low=0.5, is_high=5.0),
        note="log_probs_ref is the teacher's; rewards play no part. With disable_ppo_ratio and "
        "icepop, as NeMo-RL advises; it gives no bounds, these are nemo-rl/icepop's.",
    ),
    "nemo-rl/grpo-is": replace(
        GRPO,
        title="NeMo-RL's grpo with its importance-sampling correction",
        correction=use("token-truncate", **_UNTRUNCATED),
        note="The weight π_old/π_rollout is unbounded unless a truncation is chosen "
        "(-p is_high=2 for tis).",
    ),
    "nemo-rl/icepop": replace(
        GRPO,
        title="NeMo-RL's grpo with icepop",
        paper="2510.18855",
        correction=use("token-mask", is_low=0.5, is_high=5.0),
        note="Tokens outside the bounds weigh 0 and stay in the denominator.",
    ),
    "nemo-rl/seq-mask-tis": replace(
        GRPO,
        title="NeMo-RL's grpo with seq-mask-tis",
        correction=use("geometric-mask", is_low=0.999, is_high=1.002),
        note="A response is kept by its geometric mean, and its tokens weigh their own ρ.",
    ),
}
