"""AReaL's decoupled PPO, as its example configurations set it."""

from __future__ import annotations

from grpo_cli.objective.row import Row, executed, use, words

_READS = words(
    "epsilon_low epsilon_high dual_clip tau_pos tau_neg beta reward_bias reward_scaling "
    "reward_clip std_eps is_low is_high m2_threshold rejection_metric rejection_level "
    "rejection_agg rejection_action"
)
"""Of PPOActorConfig, its NormConfig (eps) and RejectionSamplingConfig; the clamp of the KL is a
constant (areal/utils/data.py)."""

GRPO = Row(
    title="AReaL's GRPO (examples/math/gsm8k_grpo.yaml)",
    paper="2505.24298",
    advantage=use("areal/grpo"),
    ratio=use("token"),
    surrogate=use("clip", epsilon_low=0.4, epsilon_high=0.4),
    kl=use("areal/k1-in-reward", beta=0.0),
    correction=use("areal/rejection"),
    aggregate=use("areal/token-mean"),
    reads=_READS,
    checked="executed",
    version="cbff54d (2026-08-22)",
    note="log_probs_old is AReaL's prox_logp. Rewards are shifted, scaled, clipped and normalised "
    "in the group; the advantages are then normalised over all tokens. Tokens with "
    "π_old/π_rollout > 5 get weight 0 and stay in the denominator. Without rejection sampling "
    "(--correction none) there is no behaviour weight, and decoupled PPO is plain PPO. With β > 0 "
    "the KL in the reward uses the engine's log-probs; without the decoupled loss, use --kl "
    "k1-in-reward -p kl_output_clamp=10. AReaL drops the reward of a response whose last token is "
    "masked but not padding: use --advantage areal/on-last-token for records without padding.",
)

ROWS = {
    "areal/grpo": GRPO,
    "areal/gspo": executed(
        GRPO,
        ratio=use("sequence"),
        surrogate=use("areal/sequence-clip", epsilon_low=0.4, epsilon_high=0.4),
    ).named(
        "AReaL's GSPO (importance_sampling_level sequence)",
        "The mean is over tokens, so long responses have more weight; OpenRLHF, slime and NeMo-RL "
        "weight all responses equally. The ratio and the mean of per-token advantages ignore "
        "rejected tokens.",
        paper="2507.18071",
    ),
    "areal/dapo": executed(GRPO, surrogate=use("clip", epsilon_low=0.2, epsilon_high=0.28)).named(
        "AReaL's DAPO (examples/math/gsm8k_dapo_dynamic_bs.yaml)",
        "The overlong penalty is part of the rewards. AReaL's penalty has no cap; the paper's has "
        "one.",
        paper="2503.14476",
    ),
    "areal/sapo": executed(
        GRPO,
        surrogate=use("sapo", tau_pos=1.0, tau_neg=1.05),
        kl=use("k1-in-reward", beta=0.0, kl_output_clamp=10.0),
        correction=use("none"),
    ).named(
        "AReaL's SAPO",
        "The ratio uses the old log-probs. In AReaL's example those are the engine's "
        "(recompute_logprob false): use --ratio rollout. AReaL does not allow the decoupled loss "
        "here, so the KL in the reward uses the old log-probs. There is no rejection sampling. At "
        "level sequence (--ratio sequence) AReaL averages per-token advantages; this variant does "
        "not.",
        paper="2511.20347",
    ),
    "areal/cispo": executed(GRPO, surrogate=use("cispo", epsilon_low=1.0, epsilon_high=4.0)).named(
        "AReaL's CISPO (use_cispo_loss)",
        "AReaL has no default for eps_clip_higher. It recommends eps_clip 1 and eps_clip_higher "
        "4, a window of [0, 5]; MiniMax-M1 tunes only the upper bound. The behaviour weight is "
        "that of areal/grpo.",
        paper="2506.13585",
    ),
    "areal/kpop": executed(
        GRPO, correction=use("areal/rejection", rejection_metric="binary_kl")
    ).named(
        "AReaL's GRPO with KPop's rejection (metric binary_kl)",
        "A token gets weight 0 if either binary KL between the proximal and the behaviour policy "
        "exceeds upper; it stays in the denominator. AReaL's default upper, 5, is for the "
        "ratio and rejects almost nothing: set is_high, in nats. For other settings use "
        "rejection_level, rejection_agg, rejection_action and rejection_metric. AReaL's loss takes "
        "this metric, but its configuration refuses it at this commit.",
        paper="",
    ),
    "areal/m2po": executed(
        GRPO,
        surrogate=use("clip", epsilon_low=0.0, epsilon_high=0.0),
        correction=use("areal/rejection", m2_threshold=0.04),
    ).named(
        "AReaL's M2PO (examples/math/gsm8k_m2po.yaml)",
        "AReaL computes the mask per micro-batch, this variant per record. The mask compares π_old "
        "with π_rollout; the paper's compares π_θ. Masked tokens leave the denominator. The "
        "example has ε = 0, so s = min(ρ·A, A).",
        paper="2510.01161",
    ),
}
