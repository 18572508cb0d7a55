"""Papers that compute the advantage otherwise."""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.objective.row import use
from grpo_cli.papers.basics import GRPO

_NO_KL = use("none")
_REINFORCE = replace(
    GRPO,
    surrogate=use("reinforce"),
    kl=_NO_KL,
    aggregate=use("token-sum"),
)

ROWS = {
    "lite-ppo": replace(
        GRPO,
        title="Lite PPO (group mean, batch std, token mean)",
        paper="2508.08221",
        aliases=("lite_ppo",),
        advantage=use("batch-std", std_ddof=1, std_eps=1e-8),
        kl=_NO_KL,
        aggregate=use("token-mean"),
        note="The mean is still the group's; the std is of the raw rewards, and so takes in how "
        "prompts differ. ROLL's recipe takes it over a domain, TRL over all processes.",
    ),
    "rloo": replace(
        _REINFORCE,
        title="REINFORCE Leave-One-Out",
        paper="2402.14740",
        advantage=use("leave-one-out"),
        kl=use("k1-in-reward", beta=0.03),
        note="REINFORCE on whole responses, the KL in the reward (--beta 0 without a reference). "
        "TRL clips the product of the token ratios, verl and ms-swift put the advantage into a "
        "token-level PPO loss.",
    ),
    "reinforce++": replace(
        GRPO,
        title="REINFORCE++",
        paper="2501.03262",
        aliases=("reinforce_plus_plus", "reinforce-plus-plus"),
        advantage=use("returns-whiten", gamma=1.0, std_ddof=1, std_eps=1e-8),
        kl=use("k1-in-reward", beta=0.01),
        aggregate=use("token-mean"),
        note="Returns per token, the KL (k1) in the reward, whitened over the tokens of the "
        "batch. OpenRLHF whitens with ddof 0, verl and slime with ddof 1; NeMo-RL and slime take "
        "each token's own KL only, not that of those behind it.",
    ),
    "reinforce++-baseline": replace(
        GRPO,
        title="REINFORCE++ with a group baseline",
        paper="2501.03262",
        aliases=("reinforce_plus_plus_baseline", "reinforce-plus-plus-baseline"),
        advantage=use("token-whiten", std_ddof=1, std_eps=1e-8),
        kl=use("k2", beta=0.01),
        aggregate=use("token-mean"),
        note="The paper has the KL as a k2 loss here; OpenRLHF, slime and NeMo-RL can take it off "
        "the reward. Whitened over tokens as in its code; ms-swift and TRL whiten over responses "
        "(batch-whiten).",
    ),
    "opo": replace(
        _REINFORCE,
        title="On-Policy RL with Optimal reward baseline",
        paper="2505.23585",
        advantage=use("length-weighted"),
        note="Strictly on-policy, without KL and entropy terms. verl's opo is the advantage "
        "alone, in a PPO loss with a token mean.",
    ),
    "gpg": replace(
        _REINFORCE,
        title="Group Policy Gradient",
        paper="2504.02546",
        advantage=use("live-mean"),
        aggregate=use("token-mean"),
        note="F_norm = 1. α makes up for groups whose rewards are all equal; verl's counts the "
        "scores other than 0 instead.",
    ),
    "pass-at-k": replace(
        GRPO,
        title="Leave-one-out pass@k",
        paper="2503.19595",
        aliases=("pass_at_k", "passk", "grpo_passk"),
        advantage=use("pass-at-k"),
        kl=_NO_KL,
        note="k is the group's size. verl divides by the group's std besides; a tie at the top "
        "gives no advantage to anyone.",
    ),
    "max-rl": replace(
        _REINFORCE,
        title="Maximum Likelihood Reinforcement Learning",
        paper="2602.02710",
        aliases=("maxrl", "max_rl"),
        advantage=use("max-rl"),
        note="For rewards 0 and 1. The authors' code adds 1e-6 to the mean it divides by "
        "(--advantage skyrl/maxrl, but for a lone response, whose reward it multiplies by 1e6). "
        "prime-rl puts the advantage into its own loss; SkyRL adds 1e-6 "
        "to the mean and keeps the raw reward of a lone response.",
    ),
    "gdpo": replace(
        GRPO,
        title="Group reward-Decoupled normalization Policy Optimization",
        paper="2601.05242",
        advantage=use("decoupled", std_ddof=1, std_eps=1e-8),
        kl=_NO_KL,
        note="Every reward function counts equally; weigh them beforehand. TRL's eps is 1e-4, "
        "ms-swift's 1e-8; verl whitens over tokens; NeMo-RL's group step leaves one out.",
    ),
    "scale-rl": replace(
        GRPO,
        title="ScaleRL (CISPO, batch-normalised advantages, prompt mean)",
        paper="2510.13786",
        aliases=("scalerl", "scale_rl"),
        advantage=use("batch-whiten", std_ddof=1, std_eps=1e-8),
        ratio=use("rollout"),
        surrogate=use("cispo", epsilon_low=1.0, epsilon_high=4.0),
        kl=_NO_KL,
        aggregate=use("prompt-mean"),
        note="No code is public: checked against the paper's equation, computed in 50 digits. The "
        "std is that of the centred advantages over the batch, and the ratio against the engine "
        "that sampled: --ratio token where a record has no log-probs of it. The window is [0, 5]. "
        "The paper leaves prompts without variance out of both means, which is up to the data. "
        "TRL's recipe is cispo with epsilon_high 5 (its cap is ε_high itself).",
    ),
}
