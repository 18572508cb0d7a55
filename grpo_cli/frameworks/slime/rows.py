"""slime's policy losses and advantage estimators."""

from __future__ import annotations

from grpo_cli.objective.row import Row, use, vary, words

_READS = words(
    "epsilon_low epsilon_high dual_clip beta kl_weight is_low is_high off_policy_mask_threshold"
)
"""Of slime's arguments; what is added to the std, and clamps of the KL, are constants."""

GRPO = Row(
    title="slime's grpo",
    paper="2402.03300",
    advantage=use("group-std", std_ddof=1, std_eps=1e-6, std_min=0.0),
    ratio=use("token"),
    surrogate=use("clip", epsilon_low=0.2, epsilon_high=0.2),
    kl=use("k1", beta=0.0),
    correction=use("none"),
    aggregate=use("response-mean"),
    entropy=use("bonus", entropy_coef=0.0),
    reads=_READS,
    checked="executed",
    version="624b824 (2026-08-21)",
    note="Each rollout is averaged over its tokens. slime joins samples with one rollout_id; here "
    "each response is a rollout. If groups have unequal sizes, slime normalises the whole batch "
    "as one group: use --advantage slime/one-group. For --calculate-per-token-loss use "
    "--aggregate slime/token-mean; for --use-rollout-logprobs, --ratio rollout; for "
    "--use-unbiased-kl, -p kl_weight=token-ratio; for --kl-loss-type low_var_kl, --kl "
    "slime/low_var_kl. For --normalize-advantages use --advantage slime/normalised; for "
    "--use-opd, slime/opd (log_probs_ref is the teacher's); for both, slime/opd-normalised.",
)

ROWS = {
    "slime/grpo": GRPO,
    "slime/gspo": vary(GRPO, ratio=use("sequence")).named(
        "slime's gspo",
        "ε is 0.2 by default; the paper's is 3e-4. With a train/inference correction, token "
        "weights multiply the sequence loss. The unbiased KL is weighted by the token's ratio (-p "
        "kl_weight=token-ratio). With --aggregate slime/token-mean, long responses have more "
        "weight.",
        paper="2507.18071",
    ),
    "slime/cispo": vary(GRPO, surrogate=use("cispo", epsilon_low=0.2, epsilon_high=0.2)).named(
        "slime's cispo",
        "eps_clip is 0.2 by default, so the weight is clamped to [0.8, 1.2]. slime warns and "
        "recommends 1.0 and 4.0, a window of [0, 5].",
        paper="2506.13585",
    ),
    "slime/reinforce_plus_plus_baseline": vary(
        GRPO, advantage=use("slime/reinforce_plus_plus_baseline"), kl=use("k1-in-reward", beta=0.0)
    ).named(
        "slime's reinforce_plus_plus_baseline",
        "Each token's reward has only its own KL; OpenRLHF sums the KL over the following tokens. "
        "Whitening divides by √(v + 1e-8), with ddof 1.",
        paper="2501.03262",
    ),
    "slime/tis": vary(GRPO, correction=use("token-truncate", is_low=0.0, is_high=2.0)).named(
        "slime's grpo with --use-tis",
        "The clipped loss of each token is multiplied by ρ = π_old/π_rollout, clamped to [0, 2].",
    ),
    "slime/icepop": vary(GRPO, correction=use("token-mask", is_low=0.0, is_high=2.0)).named(
        "slime's grpo with --use-tis and its icepop_function",
        "The bounds are tis_clip_low and tis_clip, 0 and 2 by default; these are not IcePop's "
        "defaults.",
        paper="2510.18855",
    ),
    "slime/opsm": vary(
        GRPO, correction=use("off-policy-mask-old", off_policy_mask_threshold=1e-4)
    ).named(
        "slime's grpo with --use-opsm",
        "Drops tokens with A < 0 in a response whose mean log π_old − log π_θ exceeds 1e-4. "
        "DeepSeek-V3.2 uses the policy that sampled instead of π_old.",
        paper="2512.02556",
    ),
}
