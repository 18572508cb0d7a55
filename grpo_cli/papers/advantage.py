"""Papers that compute the advantage otherwise, learn from some responses only, or correct."""

from __future__ import annotations

from grpo_cli.objective.row import use, vary
from grpo_cli.papers.basics import GRPO

_NO_KL = use("none")
_REINFORCE = vary(GRPO, surrogate=use("reinforce"), kl=_NO_KL, aggregate=use("token-sum"))
_TOKEN_MEANS = vary(GRPO, kl=_NO_KL, aggregate=use("token-mean"))
_SIGNED = (
    "The paper's objective is REINFORCE without a baseline; the clip and the token mean are its "
    "released code's, and the gradient is the same at ratio 1. "
)
_SUBSET = "The code takes the other responses out of the batch, and so out of the denominator."

ROWS = {
    "lite-ppo": vary(
        GRPO,
        advantage=use("batch-std", std_ddof=1, std_eps=1e-8),
        kl=_NO_KL,
        aggregate=use("token-mean"),
    ).named(
        "Lite PPO (group mean, batch std, token mean)",
        "The mean is still the group's; the std is of the raw rewards, and so takes in how "
        "prompts differ. ROLL's recipe takes it over a domain, TRL over all processes.",
        paper="2508.08221",
        aliases=("lite_ppo",),
    ),
    "rloo": vary(
        _REINFORCE, advantage=use("leave-one-out"), kl=use("k1-in-reward", beta=0.03)
    ).named(
        "REINFORCE Leave-One-Out",
        "REINFORCE on whole responses, the KL in the reward (--beta 0 without a reference). "
        "TRL clips the product of the token ratios, verl and ms-swift put the advantage into a "
        "token-level PPO loss.",
        paper="2402.14740",
    ),
    "reinforce++": vary(
        GRPO,
        advantage=use("returns-whiten", gamma=1.0, std_ddof=1, std_eps=1e-8),
        kl=use("k1-in-reward", beta=0.01),
        aggregate=use("token-mean"),
    ).named(
        "REINFORCE++",
        "Returns per token, the KL (k1) in the reward, whitened over the tokens of the "
        "batch. OpenRLHF whitens with ddof 0, verl and slime with ddof 1; NeMo-RL and slime take "
        "each token's own KL only, not that of those behind it.",
        paper="2501.03262",
        aliases=("reinforce_plus_plus", "reinforce-plus-plus"),
    ),
    "reinforce++-baseline": vary(
        GRPO,
        advantage=use("token-whiten", std_ddof=1, std_eps=1e-8),
        kl=use("k2", beta=0.01),
        aggregate=use("token-mean"),
    ).named(
        "REINFORCE++ with a group baseline",
        "The paper has the KL as a k2 loss here; OpenRLHF, slime and NeMo-RL can take it off "
        "the reward. Whitened over tokens as in its code; ms-swift and TRL whiten over responses "
        "(batch-whiten).",
        paper="2501.03262",
        aliases=("reinforce_plus_plus_baseline", "reinforce-plus-plus-baseline"),
    ),
    "opo": vary(_REINFORCE, advantage=use("length-weighted")).named(
        "On-Policy RL with Optimal reward baseline",
        "Strictly on-policy, without KL and entropy terms. verl's opo is the advantage "
        "alone, in a PPO loss with a token mean.",
        paper="2505.23585",
    ),
    "gpg": vary(_REINFORCE, advantage=use("live-mean"), aggregate=use("token-mean")).named(
        "Group Policy Gradient",
        "F_norm = 1. α makes up for groups whose rewards are all equal; verl's counts the "
        "scores other than 0 instead.",
        paper="2504.02546",
    ),
    "pass-at-k": vary(GRPO, advantage=use("pass-at-k"), kl=_NO_KL).named(
        "Leave-one-out pass@k",
        "k is the group's size. verl divides by the group's std besides; a tie at the top "
        "gives no advantage to anyone.",
        paper="2503.19595",
        aliases=("pass_at_k", "passk", "grpo_passk"),
    ),
    "max-rl": vary(_REINFORCE, advantage=use("max-rl")).named(
        "Maximum Likelihood Reinforcement Learning",
        "For rewards 0 and 1. The authors' code adds 1e-6 to the mean it divides by "
        "(--advantage skyrl/maxrl, but for a lone response, whose reward it multiplies by 1e6). "
        "prime-rl puts the advantage into its own loss; SkyRL adds 1e-6 "
        "to the mean and keeps the raw reward of a lone response.",
        paper="2602.02710",
        aliases=("maxrl", "max_rl"),
    ),
    "gdpo": vary(GRPO, advantage=use("decoupled", std_ddof=1, std_eps=1e-8), kl=_NO_KL).named(
        "Group reward-Decoupled normalization Policy Optimization",
        "Every reward function counts equally; weigh them beforehand. TRL's eps is 1e-4, "
        "ms-swift's 1e-8; verl whitens over tokens; NeMo-RL's group step leaves one out.",
        paper="2601.05242",
    ),
    "scale-rl": vary(
        GRPO,
        advantage=use("batch-whiten", std_ddof=1, std_eps=1e-8),
        ratio=use("rollout"),
        surrogate=use("cispo", epsilon_low=1.0, epsilon_high=4.0),
        kl=_NO_KL,
        aggregate=use("prompt-mean"),
    ).named(
        "ScaleRL (CISPO, batch-normalised advantages, prompt mean)",
        "No code is public: checked against the paper's equation, computed in 50 digits. The "
        "std is that of the centred advantages over the batch, and the ratio against the engine "
        "that sampled: --ratio token where a record has no log-probs of it. The window is [0, 5]. "
        "The paper leaves prompts without variance out of both means, which is up to the data. "
        "TRL's recipe is cispo with epsilon_high 5 (its cap is ε_high itself).",
        paper="2510.13786",
        aliases=("scalerl", "scale_rl"),
    ),
    "mt-grpo": vary(
        GRPO,
        advantage=use("outcome-and-turn", turn_advantage_coef=1.0, std_ddof=1, std_eps=1e-4),
        kl=use("k3", beta=0.01),
        aggregate=use("token-mean"),
    ).named(
        "Multi-Turn GRPO (an advantage of the outcome, one of the turn's reward)",
        "As the authors' code computes it, which was run: λ multiplies the turn's advantage and "
        "only tokens before the tool's result have one, which is a reward of 0 for other turns. A "
        "completion without a result has the normalised sum of both rewards there.",
        paper="2505.11821",
        aliases=("mt_grpo",),
    ),
    "gigpo": vary(
        GRPO, advantage=use("gigpo"), kl=use("k3", beta=0.01), aggregate=use("turn-mean")
    ).named(
        "Group-in-Group Policy Optimization (trajectories of a group, turns of a state)",
        "Needs state_ids, the state that each turn began in. The authors' code (verl-agent, "
        "which was run) counts a trajectory once per turn in the mean and std of outcomes "
        "(-p outcome_unit=turn), averages over tokens (--aggregate token-mean), and can leave out "
        "both stds (mean_norm), which is not covered. A lone response of a group keeps its raw "
        "reward there.",
        paper="2505.10978",
    ),
    "psr": vary(
        _TOKEN_MEANS, advantage=use("signed", positive_weight=1.0, negative_weight=0.0)
    ).named("Positive Sample Reinforcement", _SIGNED + _SUBSET, paper="2506.01347"),
    "nsr": vary(
        _TOKEN_MEANS, advantage=use("signed", positive_weight=0.0, negative_weight=1.0)
    ).named("Negative Sample Reinforcement", _SIGNED + _SUBSET, paper="2506.01347"),
    "w-reinforce": vary(
        _TOKEN_MEANS, advantage=use("signed", positive_weight=0.1, negative_weight=1.0)
    ).named(
        "Weighted-REINFORCE (NSR with a little PSR)",
        _SIGNED + "λ is -p positive_weight.",
        paper="2506.01347",
        aliases=("w_reinforce", "weighted-reinforce"),
    ),
    "gfpo": vary(_TOKEN_MEANS, advantage=use("shortest", gfpo_keep=8), until="trl 1.7.1").named(
        "Group Filtered Policy Optimization, shortest responses",
        "The others have advantage 0 and stay in the denominator, as in the paper's equation, "
        "which was computed in 50 digits; it is of one prompt (--aggregate prompt-mean). No code "
        "of the authors' is public. TRL's GFPOTrainer (until 1.7.1) took the others out, with ddof "
        "1 and eps 1e-4: its filter was run. A KL and an entropy term may be added (--kl k3 "
        "--beta …); adaptive difficulty needs the prompts before, which no record has.",
        paper="2508.09726",
    ),
    "gfpo-efficiency": vary(_TOKEN_MEANS, advantage=use("token-efficient", gfpo_keep=8)).named(
        "Group Filtered Policy Optimization, most reward per token",
        "As gfpo, by reward over length.",
        paper="2508.09726",
        aliases=("gfpo_efficiency",),
    ),
    "tis": vary(_TOKEN_MEANS, correction=use("token-truncate", is_low=None, is_high=2.0)).named(
        "GRPO with Truncated Importance Sampling",
        "Yao et al., 2025, a blog post. The weight multiplies the clipped surrogate, outside "
        "the clip. Bounds: slime and open-instruct [0, 2], OpenRLHF [0.5, 5], TRL's cap 3 on the "
        "whole response by default.",
        paper="",
    ),
    "icepop": vary(_TOKEN_MEANS, correction=use("token-mask", is_low=0.5, is_high=5.0)).named(
        "GRPO with IcePop's token mask",
        "A masked token stays in the denominator; SkyRL and AReaL offer it as a rejection, "
        "and ROLL's defaults are [0.8, 1.2].",
        paper="2510.18855",
        aliases=("ice-pop",),
    ),
    "deepseek-v3.2": vary(
        GRPO,
        advantage=use("group-mean"),
        kl=use("k3", beta=0.01, kl_weight="ratio"),
        correction=use("off-policy-mask", off_policy_mask_threshold=1e-4),
    ).named(
        "DeepSeek-V3.2's GRPO (unbiased KL, off-policy sequence mask)",
        "The paper states neither β nor the threshold; 1e-4 is slime's. Its π_old in the "
        "mask is the engine's (log_probs_rollout); --correction off-policy-mask-old compares with "
        "the trainer's, as slime does.",
        paper="2512.02556",
        aliases=("deepseek_v3.2",),
    ),
}
