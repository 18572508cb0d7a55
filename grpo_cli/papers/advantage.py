"""Papers that compute the advantage otherwise, learn from some responses only, or correct."""

from __future__ import annotations

from grpo_cli.objective.row import use, vary
from grpo_cli.papers.basics import GRPO, PLAIN, TOKEN_MEANS

_REINFORCE = vary(PLAIN, surrogate=use("reinforce"), aggregate=use("token-sum"))
_SIGNED = (
    "The paper's objective is REINFORCE without a baseline. The clip and the token mean are "
    "from its released code; at ratio 1 the gradient is the same. "
)
_SUBSET = (
    "The code removes the other responses from the batch, so they do not count in the denominator."
)

ROWS = {
    "lite-ppo": vary(TOKEN_MEANS, advantage=use("batch-std", std_ddof=1, std_eps=1e-8)).named(
        "Lite PPO (group mean, batch std, token mean)",
        "The mean is the group's. The std is that of all raw rewards in the batch, so it "
        "includes differences between prompts. ROLL's recipe computes it per domain, TRL "
        "over all processes.",
        paper="2508.08221",
        aliases=("lite_ppo",),
    ),
    "rloo": vary(
        _REINFORCE, advantage=use("leave-one-out"), kl=use("k1-in-reward", beta=0.03)
    ).named(
        "REINFORCE Leave-One-Out",
        "REINFORCE on whole responses with the KL in the reward (without a reference use "
        "--beta 0). TRL clips the product of the token ratios; verl and ms-swift use the "
        "advantage in a token-level PPO loss.",
        paper="2402.14740",
    ),
    "reinforce++": vary(
        GRPO,
        advantage=use("returns-whiten", gamma=1.0, std_ddof=1, std_eps=1e-8),
        kl=use("k1-in-reward", beta=0.01),
        aggregate=use("token-mean"),
    ).named(
        "REINFORCE++",
        "Returns per token with the KL (k1) in the reward, whitened over the tokens of the "
        "batch. OpenRLHF whitens with ddof 0, verl and slime with ddof 1. NeMo-RL and slime "
        "subtract only a token's own KL, not that of later tokens.",
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
        "In the paper the KL is a k2 loss; OpenRLHF, slime and NeMo-RL can subtract it from "
        "the reward instead. Advantages are whitened over tokens, as in its code; ms-swift "
        "and TRL whiten over responses (batch-whiten).",
        paper="2501.03262",
        aliases=("reinforce_plus_plus_baseline", "reinforce-plus-plus-baseline"),
    ),
    "opo": vary(_REINFORCE, advantage=use("length-weighted")).named(
        "On-Policy RL with Optimal reward baseline",
        "Strictly on-policy, without KL and entropy terms. verl's opo is only the advantage, "
        "in a PPO loss with a token mean.",
        paper="2505.23585",
    ),
    "gpg": vary(_REINFORCE, advantage=use("live-mean"), aggregate=use("token-mean")).named(
        "Group Policy Gradient",
        "F_norm = 1. α compensates for groups whose rewards are all equal; verl's α counts "
        "nonzero scores instead.",
        paper="2504.02546",
    ),
    "pass-at-k": vary(PLAIN, advantage=use("pass-at-k")).named(
        "Leave-one-out pass@k",
        "k is the group size. verl also divides by the group's std. If several responses "
        "share the best reward, all advantages are 0.",
        paper="2503.19595",
        aliases=("pass_at_k", "passk", "grpo_passk"),
    ),
    "max-rl": vary(_REINFORCE, advantage=use("max-rl")).named(
        "Maximum Likelihood Reinforcement Learning",
        "For rewards 0 and 1. The authors' code and SkyRL add 1e-6 to the mean before "
        "dividing (--advantage skyrl/maxrl). For a group of one response, SkyRL keeps the "
        "raw reward; the authors' code multiplies it by 1e6. prime-rl uses the advantage in "
        "its own loss.",
        paper="2602.02710",
        aliases=("maxrl", "max_rl"),
    ),
    "gdpo": vary(PLAIN, advantage=use("decoupled", std_ddof=1, std_eps=1e-8)).named(
        "Group reward-Decoupled normalization Policy Optimization",
        "All reward functions count equally; to weight them, scale the rewards first. TRL's "
        "eps is 1e-4, ms-swift's 1e-8. verl whitens over tokens. NeMo-RL uses leave-one-out "
        "within a group.",
        paper="2601.05242",
    ),
    "scale-rl": vary(
        PLAIN,
        advantage=use("batch-whiten", std_ddof=1, std_eps=1e-8),
        ratio=use("rollout"),
        surrogate=use("cispo", epsilon_low=1.0, epsilon_high=4.0),
        aggregate=use("prompt-mean"),
    ).named(
        "ScaleRL (CISPO, batch-normalised advantages, prompt mean)",
        "No code is public; this variant is checked against the paper's equation in 50 digits. "
        "The std is that of the centred advantages over the batch. The ratio is "
        "π_θ/π_rollout; without engine log-probs use --ratio token. The ratio is capped at "
        "5. The paper drops prompts whose rewards are all equal; filter them before. TRL's "
        "recipe is cispo with epsilon_high 5, which is its cap.",
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
        "Follows the authors' code, which was executed. λ multiplies the advantage of the "
        "turn's reward. Only tokens before the tool result have a turn advantage; other "
        "turns have reward 0. A completion without a tool result uses the normalised sum of "
        "both rewards.",
        paper="2505.11821",
        aliases=("mt_grpo",),
    ),
    "gigpo": vary(
        GRPO, advantage=use("gigpo"), kl=use("k3", beta=0.01), aggregate=use("turn-mean")
    ).named(
        "Group-in-Group Policy Optimization (trajectories of a group, turns of a state)",
        "Needs state_ids: the state in which each turn began. The authors' code (verl-agent, "
        "executed) differs: it counts a trajectory once per turn in the mean and std of outcomes "
        "(-p outcome_unit=turn) and averages over tokens (--aggregate token-mean). For a group of "
        "one response it keeps the raw reward. Its option mean_norm is not covered.",
        paper="2505.10978",
    ),
    "psr": vary(
        TOKEN_MEANS, advantage=use("signed", positive_weight=1.0, negative_weight=0.0)
    ).named("Positive Sample Reinforcement", _SIGNED + _SUBSET, paper="2506.01347"),
    "nsr": vary(
        TOKEN_MEANS, advantage=use("signed", positive_weight=0.0, negative_weight=1.0)
    ).named("Negative Sample Reinforcement", _SIGNED + _SUBSET, paper="2506.01347"),
    "w-reinforce": vary(
        TOKEN_MEANS, advantage=use("signed", positive_weight=0.1, negative_weight=1.0)
    ).named(
        "Weighted-REINFORCE (NSR with a little PSR)",
        _SIGNED + "λ is -p positive_weight.",
        paper="2506.01347",
        aliases=("w_reinforce", "weighted-reinforce"),
    ),
    "gfpo": vary(TOKEN_MEANS, advantage=use("shortest", gfpo_keep=8), until="trl 1.7.1").named(
        "Group Filtered Policy Optimization, shortest responses",
        "Filtered responses have advantage 0 and count in the denominator, as in the paper's "
        "equation (checked in 50 digits; no code is public). The equation averages over one "
        "prompt: --aggregate prompt-mean. TRL's GFPOTrainer (until 1.7.1) removed filtered "
        "responses and used ddof 1 and eps 1e-4. To add a KL: --kl k3 --beta …. Adaptive "
        "difficulty needs earlier prompts, which records do not have.",
        paper="2508.09726",
    ),
    "gfpo-efficiency": vary(TOKEN_MEANS, advantage=use("token-efficient", gfpo_keep=8)).named(
        "Group Filtered Policy Optimization, most reward per token",
        "gfpo that keeps the responses with the highest reward per token.",
        paper="2508.09726",
        aliases=("gfpo_efficiency",),
    ),
    "tis": vary(TOKEN_MEANS, correction=use("token-truncate", is_low=None, is_high=2.0)).named(
        "GRPO with Truncated Importance Sampling",
        "From a blog post (Yao et al., 2025). The weight multiplies the clipped surrogate. "
        "Bounds of the weight: slime and open-instruct [0, 2], OpenRLHF [0.5, 5]; TRL caps "
        "the weight of a whole response at 3 by default.",
        paper="",
    ),
    "icepop": vary(TOKEN_MEANS, correction=use("token-mask", is_low=0.5, is_high=5.0)).named(
        "GRPO with IcePop's token mask",
        "A masked token still counts in the denominator. SkyRL and AReaL can reject the "
        "token instead. ROLL's default bounds are [0.8, 1.2].",
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
        "The paper gives neither β nor the threshold; 1e-4 is slime's. The mask compares "
        "with the engine's log-probs (log_probs_rollout); --correction off-policy-mask-old "
        "compares with the trainer's, as slime does.",
        paper="2512.02556",
        aliases=("deepseek_v3.2",),
    ),
}
