"""OpenRLHF's policy losses and advantage estimators."""

from __future__ import annotations

from grpo_cli.objective.row import Row, Use, use, vary, words


def _vllm(choice: str) -> Use:
    """A correction with the bounds that OpenRLHF's three kinds share."""
    return use(choice, is_low=0.5, is_high=5.0)


_READS = words(
    "epsilon_low epsilon_high dual_clip beta reward_clip is_low is_high rejection_threshold"
)
"""Of PolicyLoss, reward.clip_range and kl.init_coef; the clamps on log ratios and on the KL are
constants (openrlhf/models)."""

PPO = Row(
    title="OpenRLHF's PPO loss with group_norm advantages (its GRPO)",
    paper="2402.03300",
    aliases=("openrlhf/grpo", "openrlhf/group_norm"),
    advantage=use("openrlhf/group_norm"),
    ratio=use("token", log_ratio_clamp=20.0),
    surrogate=use("clip", epsilon_low=0.2, epsilon_high=0.2),
    kl=use("k1-in-reward", beta=0.01, kl_output_clamp=10.0),
    correction=use("none"),
    aggregate=use("token-mean"),
    kl_aggregate=use("token-mean"),
    entropy=use("bonus", entropy_coef=0.0),
    entropy_aggregate=use("token-mean"),
    reads=_READS,
    checked="executed",
    version="openrlhf 0.11.2",
    note="By default the KL is in the reward: after the group norm, the KL of a token and of all "
    "that follow it is subtracted. For --algo.kl.use_loss, use --kl k1, k2 or k3; with "
    "unbiased_gradient (since 0.11.1), --kl openrlhf/k1+. For loss_agg_mode (since 0.11.2), use "
    "--aggregate openrlhf/seq-mean-token-mean; KL and entropy stay token means. OpenRLHF clips "
    "the score to ±10 after normalising, AReaL before. The default estimator, gae, is not "
    "covered: it needs a critic.",
)

ROWS = {
    "openrlhf/ppo": PPO,
    "openrlhf/gspo": vary(
        PPO, ratio=use("sequence"), aggregate=use("openrlhf/response-mean")
    ).named(
        "OpenRLHF's GSPO loss",
        "The policy term is averaged over responses, a KL in the loss over tokens. Empty "
        "responses do not count. The paper's ε of 3e-4 and 4e-4 is not the default.",
        paper="2507.18071",
    ),
    "openrlhf/gspo-is": vary(
        PPO, ratio=use("rollout-sequence"), aggregate=use("openrlhf/response-mean")
    ).named(
        "OpenRLHF's GSPO loss with its importance-sampling correction switched on",
        "Any is_correction_level except off (before 0.11.2: enable_vllm_is_correction) uses the "
        "engine's log-probs instead of π_old in the ratio. There is no other weight; slime and "
        "NeMo-RL multiply by one.",
        paper="2507.18071",
    ),
    "openrlhf/dr_grpo": vary(PPO, advantage=use("openrlhf/dr_grpo")).named(
        "OpenRLHF's PPO loss with dr_grpo advantages",
        "Only the advantage is Dr. GRPO's: the loss still averages over tokens.",
        paper="2503.20783",
    ),
    "openrlhf/rloo": vary(PPO, advantage=use("openrlhf/rloo")).named(
        "OpenRLHF's PPO loss with rloo advantages",
        "The baseline excludes the response itself. The ratio is per token; in TRL's RLOO it is "
        "per response.",
        paper="2402.14740",
    ),
    "openrlhf/reinforce_baseline": vary(PPO, advantage=use("openrlhf/reinforce_baseline")).named(
        "OpenRLHF's PPO loss with REINFORCE++-baseline advantages",
        "The KL of a token is summed over the following tokens, and the std has ddof 0. slime "
        "whitens with ddof 1, NeMo-RL with ddof 0; in both, each token has only its own KL.",
        paper="2501.03262",
    ),
    "openrlhf/tis": vary(PPO, correction=_vllm("token-truncate")).named(
        "OpenRLHF's PPO loss with is_correction_level token and mode clip (its tis)",
        "ρ = π_old/π_rollout is clamped to [0.5, 5] per token; slime and open-instruct clamp to "
        "[0, 2]. Before 0.11.2 the option was vllm_is_correction_type tis, with the same numbers.",
    ),
    "openrlhf/icepop": vary(PPO, correction=_vllm("token-mask")).named(
        "OpenRLHF's PPO loss with is_correction_level token (its icepop)",
        "Tokens outside [0.5, 5] get weight 0 and stay in the denominator.",
        paper="2510.18855",
    ),
    "openrlhf/seq-mask-tis": vary(PPO, correction=_vllm("geometric-mask")).named(
        "OpenRLHF's PPO loss with is_correction_level seq (its seq-mask-tis)",
        "The geometric mean decides if a response is kept; its tokens are weighted by their own "
        "unclamped ρ. AReaL and open-instruct use the mean as the weight.",
    ),
    "openrlhf/flash_reinforce": vary(
        PPO,
        advantage=use("openrlhf/flash_reinforce"),
        correction=use("openrlhf/seq-binary-kl-mask"),
    ).named(
        "OpenRLHF's FlashREINFORCE",
        "For one response per prompt. The baseline is the mean of the batch, without whitening. A "
        "response is dropped if its mean binary KL to the engine exceeds is_correction_threshold "
        "(-p rejection_threshold=…, no default). The options are advantage.estimator, "
        "is_correction_level seq and is_correction_gating binary_kl.",
        paper="",
    ),
}
