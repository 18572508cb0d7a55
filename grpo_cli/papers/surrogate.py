"""Papers that tame the ratio otherwise: other surrogates, and other bounds of the clip."""

from __future__ import annotations

from grpo_cli.objective.row import use, vary
from grpo_cli.papers import basics
from grpo_cli.papers.basics import PLAIN, TOKEN_MEANS

_DAPO = basics.ROWS["dapo"]

ROWS = {
    "dapo-prompt": vary(_DAPO, aggregate=use("prompt-mean")).named(
        "DAPO with its equation's own denominator",
        "The paper's equation averages over the tokens of each group, then over prompts. Its "
        "code and the variant dapo average over the tokens of the batch.",
        paper="2503.14476",
    ),
    "gspo-token": vary(
        PLAIN,
        ratio=use("sequence-token"),
        surrogate=use("clip", epsilon_low=3e-4, epsilon_high=4e-4),
    ).named(
        "GSPO-token",
        "The value is that of gspo; the gradient too, if all tokens of a response share an "
        "advantage. verl's and SkyRL's gspo are this variant with log s capped at 10.",
        paper="2507.18071",
        aliases=("gspo_token",),
    ),
    "luspo": vary(
        PLAIN,
        ratio=use("sequence"),
        surrogate=use("clip", epsilon_low=2e-3, epsilon_high=2.5e-3),
        aggregate=use("token-sum"),
    ).named(
        "Length-Unbiased Sequence Policy Optimization",
        "gspo with each response weighted by its length. Liger's Triton kernel applies the "
        "weight twice.",
        paper="2602.05261",
    ),
    "gmpo": vary(PLAIN, surrogate=use("gmpo", epsilon_low=0.4, epsilon_high=0.4)).named(
        "Geometric-Mean Policy Optimization",
        "ε applies to the log ratio: the ratio is clipped to [e^−0.4, e^0.4]. verl averages "
        "over the rows of a micro-batch, whatever the aggregation.",
        paper="2507.20673",
        aliases=("geo_mean",),
    ),
    "sapo": vary(PLAIN, surrogate=use("sapo", tau_pos=1.0, tau_neg=1.05)).named(
        "Soft Adaptive Policy Optimization",
        "On-policy the value is 2A/τ, not A. verl always uses the response mean; SkyRL "
        "averages as configured (over tokens by default).",
        paper="2511.20347",
    ),
    "vespo": vary(TOKEN_MEANS, ratio=use("product"), surrogate=use("vespo")).named(
        "Variational Sequence-level Soft Policy Optimization",
        "The ratio is the product over the response, not the geometric mean. TRL clamps it "
        "and includes the mismatch with the rollout engine in it.",
        paper="2602.10693",
    ),
    "dppo-tv": vary(
        TOKEN_MEANS, surrogate=use("dppo-tv", divergence_low=0.15, divergence_high=0.15)
    ).named(
        "Divergence PPO, binary total variation",
        "This variant compares with the old policy, as the authors' …_recompute masks do. The "
        "paper compares with the engine that sampled: --ratio rollout --surrogate "
        "dppo-tv-rollout. δ is 0.2 in verl's recipe and SkyRL. verl's value contains log "
        "π_θ, and verl caps the ratio.",
        paper="2602.04879",
        aliases=("dppo",),
    ),
    "dppo-kl": vary(
        TOKEN_MEANS, surrogate=use("dppo-kl", divergence_low=0.05, divergence_high=0.05)
    ).named(
        "Divergence PPO, binary KL",
        "dppo-tv with the KL of two outcomes: this token, or any other. To compare with the "
        "engine, as the authors' code does: --ratio rollout --surrogate dppo-kl-rollout. "
        "SkyRL's documentation uses δ = 0.05.",
        paper="2602.04879",
    ),
    "dro": vary(
        TOKEN_MEANS, advantage=use("group-mean"), surrogate=use("dro", dro_beta=0.05)
    ).named(
        "Direct Reward Optimization",
        "The paper learns a value function and squares the response's log ratio. As a GRPO "
        "loss (Kimi k1.5, verl, Tinker) it is per token. verl has no default β; ROLL's is "
        "0.1.",
        paper="2405.19107",
    ),
    "topr": vary(
        PLAIN,
        advantage=use("group-mean"),
        ratio=use("product"),
        surrogate=use("topr"),
        aggregate=use("token-sum"),
    ).named(
        "Tapered Off-Policy REINFORCE",
        "The sign of the advantage (in the paper: reward minus baseline) separates good from "
        "bad responses. ROLL uses the sign of the raw score and caps the ratio of each token "
        "(--ratio token).",
        paper="2503.14286",
    ),
    "kl-cov": vary(
        TOKEN_MEANS, surrogate=use("kl-cov", kl_cov_ratio=0.0002, ppo_kl_coef=1.0)
    ).named(
        "KL-Cov",
        "Nothing is clipped. The share of penalised tokens is the authors' for 32B, 0.0002; "
        "for 7B it is 0.002. This variant ranks tokens within a record, verl and SkyRL within a "
        "micro-batch. The shares in verl and SkyRL differ a thousandfold.",
        paper="2505.22617",
        aliases=("kl_cov",),
    ),
    "clip-cov": vary(TOKEN_MEANS, surrogate=use("clip-cov")).named(
        "Clip-Cov",
        "Drops random tokens; set the seed with -p clip_cov_seed=N. verl and SkyRL draw "
        "without a seed. SkyRL computes the covariances from scaled advantages.",
        paper="2505.22617",
        aliases=("clip_cov",),
    ),
    "two-sided": vary(
        TOKEN_MEANS,
        surrogate=use("clip", epsilon_low=0.2, epsilon_high=0.2, delta=4.0),
        kl=use("k3", beta=0.001),
    ).named(
        "Two-sided clip (INTELLECT-2)",
        "δ bounds the ratio if A < 0. In TRL and Liger, a delta below 1 + ε_high also "
        "tightens the clip for A > 0, and delta has no effect in cispo.",
        paper="2505.07291",
        aliases=("two_sided",),
    ),
    "dual-clip": vary(
        TOKEN_MEANS, surrogate=use("clip", epsilon_low=0.2, epsilon_high=0.2, dual_clip=3.0)
    ).named(
        "Dual-clip PPO on group advantages",
        "verl always uses it (c = 3); elsewhere it is an option. ROLL's c is 1 + 2ε = 1.4.",
        paper="1912.09729",
        aliases=("dual_clip",),
    ),
    "fipo": vary(
        _DAPO,
        ratio=use("token", log_ratio_clamp=20.0),
        surrogate=use("fipo", log_ratio_clamp=20.0, fipo_safety_threshold=10.0),
        correction=use("dual-clip-drop"),
    ).named(
        "Future-KL Influenced Policy Optimization",
        "DAPO weighted by the log ratios of later tokens, with the settings of the authors' "
        "32B script. A response with more than one token of A < 0 and ρ > δ is dropped. In "
        "ms-swift no response is dropped, the safety threshold is 4, and δ is off by "
        "default.",
        paper="2603.19835",
    ),
    "real": vary(
        PLAIN,
        advantage=use("group-mean"),
        ratio=use("sequence"),
        surrogate=use("real", real_tau=0.5),
        aggregate=use("prompt-mean"),
    ).named(
        "Rewards as Labels",
        "Only the sign of the advantage counts. The denominator includes groups that are all "
        "good or all bad, as in ms-swift.",
        paper="2602.05630",
    ),
    "ce-gppo": vary(TOKEN_MEANS, surrogate=use("ce-gppo", gppo_beta1=0.5, gppo_beta2=1.0)).named(
        "CE-GPPO (clipped tokens keep a part of their gradient)",
        "β₁ is 0.5 in the authors' 1.5B script and 0.75 in the 7B script. The 7B script also "
        "has a dual clip (-p dual_clip=10), which is not in the equation. GPPO of "
        "Klear-Reasoner is -p gppo_beta1=1 -p gppo_beta2=1.",
        paper="2509.20712",
        aliases=("ce_gppo", "gppo"),
    ),
    "dcpo": vary(
        TOKEN_MEANS,
        advantage=use("group-std", std_ddof=1, std_eps=0.0, std_min=0.0),
        surrogate=use("dcpo"),
        aggregate=use("response-sum"),
    ).named(
        "Dynamic Clipping Policy Optimization, a prompt's first step",
        "From a prompt's second step on, the smooth advantage needs the mean, std and number "
        "of the prompt's earlier rewards, which records do not have. In the released code "
        "the aggregation 'only-token-mean' is token-mean, and there is a dual clip (-p "
        "dual_clip=10).",
        paper="2509.02333",
    ),
    "bapo": vary(TOKEN_MEANS, surrogate=use("bapo")).named(
        "Balanced Policy Optimization with adaptive clipping",
        "Bounds are adapted for each record separately. The order (lower bound first) and "
        "the step sizes are from the released code, the ranges from its README ('as used in "
        "the paper'). The released configuration ends at 0.8 and 2.0 and has -p dual_clip=3 "
        "and --ratio token -p log_ratio_clamp=20.",
        paper="2510.18927",
    ),
    "minirl": vary(
        TOKEN_MEANS,
        advantage=use("group-mean"),
        surrogate=use("minirl"),
        aggregate=use("token-sum"),
    ).named(
        "MiniRL",
        "Needs the engine's log-probs; the mask uses the trainer's old policy. The paper's "
        "experiments truncate π_old/π_rollout, its equation does not. There is no length "
        "normalisation: the paper finds it harmful.",
        paper="2512.01374",
    ),
}
