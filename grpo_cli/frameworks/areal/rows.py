"""AReaL's decoupled PPO, as its example configurations set it."""

from __future__ import annotations

from grpo_cli.objective.row import Row, use, vary, words

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
    correction=use("token-mask", is_low=None, is_high=5.0),
    aggregate=use("areal/token-mean"),
    reads=_READS,
    checked="executed",
    version="cbff54d (2026-08-22)",
    note="log_probs_old is its prox_logp. Rewards are shifted, scaled and clipped, normalised in "
    "the group and once more over all tokens. Tokens with π_old/π_rollout > 5 weigh 0 and stay "
    "in the denominator; without rejection sampling (--correction none) no behaviour weight is "
    "applied at all, so that decoupled PPO is plain PPO. With β the KL in the reward is the "
    "engine's, since the loss is decoupled (else --kl k1-in-reward -p kl_output_clamp=10). A "
    "response whose last token is masked, and is no padding, loses its reward in AReaL: "
    "--advantage areal/on-last-token, for records without padding.",
)

ROWS = {
    "areal/grpo": GRPO,
    "areal/gspo": vary(GRPO, ratio=use("areal/sequence", is_low=None, is_high=5.0)).named(
        "AReaL's GSPO (importance_sampling_level sequence)",
        "Responses weigh by their length, since the mean is over tokens; OpenRLHF, slime and "
        "NeMo-RL weigh them alike. The ratio leaves out rejected tokens (--ratio sequence with "
        "--correction none where nothing is rejected). Advantages given token by token are used as "
        "they are; AReaL averages them over the response.",
        paper="2507.18071",
    ),
    "areal/dapo": vary(GRPO, surrogate=use("clip", epsilon_low=0.2, epsilon_high=0.28)).named(
        "AReaL's DAPO (examples/math/gsm8k_dapo_dynamic_bs.yaml)",
        "The overlong penalty belongs in the rewards; AReaL's has no cap, unlike the paper's.",
        paper="2503.14476",
    ),
    "areal/sapo": vary(
        GRPO,
        surrogate=use("sapo", tau_pos=1.0, tau_neg=1.05),
        kl=use("k1-in-reward", beta=0.0, kl_output_clamp=10.0),
        correction=use("none"),
    ).named(
        "AReaL's SAPO",
        "The ratio is against the old log-probs; its example leaves them those of the "
        "engine (recompute_logprob false), which is --ratio rollout. It refuses the decoupled "
        "loss, so the KL in the reward is that of the old log-probs. Rejection sampling is not "
        "applied.",
        paper="2511.20347",
    ),
    "areal/cispo": vary(GRPO, surrogate=use("cispo", epsilon_low=1.0, epsilon_high=4.0)).named(
        "AReaL's CISPO (use_cispo_loss)",
        "AReaL has no default for eps_clip_higher and recommends eps_clip 1 with 4, a window "
        "of [0, 5]; MiniMax-M1 tunes the upper end alone. The behaviour weight multiplies as in "
        "areal/grpo.",
        paper="2506.13585",
    ),
    "areal/kpop": vary(
        GRPO, correction=use("areal/rejection", rejection_metric="binary_kl", is_high=5.0)
    ).named(
        "AReaL's GRPO with KPop's rejection (metric binary_kl)",
        "A token weighs 0 where either binary KL between the proximal and the behaviour "
        "policy exceeds upper, and stays in the denominator. AReaL's default upper, 5, is made for "
        "the ratio and rejects next to nothing: give is_high, in nats. rejection_level, "
        "rejection_agg, rejection_action and the other metrics are hyperparameters of "
        "areal/rejection.",
        paper="",
    ),
    "areal/m2po": vary(
        GRPO,
        surrogate=use("clip", epsilon_low=0.0, epsilon_high=0.0),
        correction=use("areal/m2po-token-mask", is_high=5.0, m2_threshold=0.04),
    ).named(
        "AReaL's M2PO (examples/math/gsm8k_m2po.yaml)",
        "The mask is per micro-batch, here per record, and compares π_old with π_rollout; "
        "the paper, π_θ. What it drops leaves the denominator. With ε = 0, as in the example, "
        "s = min(ρ·A, A).",
        paper="2510.01161",
    ),
}
