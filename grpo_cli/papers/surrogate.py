"""Papers that tame the ratio otherwise: other surrogates, and other bounds of the clip."""

from __future__ import annotations

from grpo_cli.objective.row import use, vary
from grpo_cli.papers.basics import GRPO

_NO_KL = use("none")
_TOKEN_MEAN = use("token-mean")
_PLAIN = vary(GRPO, kl=_NO_KL)
_DAPO = vary(
    _PLAIN, surrogate=use("clip", epsilon_low=0.2, epsilon_high=0.28), aggregate=_TOKEN_MEAN
)
_TOKEN_MEANS = vary(_PLAIN, aggregate=_TOKEN_MEAN)

ROWS = {
    "dapo-prompt": vary(_DAPO, aggregate=use("prompt-mean")).named(
        "DAPO with its equation's own denominator",
        "The paper's equation averages over the tokens of one prompt's group, then over "
        "prompts; its code and the row dapo average over the tokens of the batch.",
        paper="2503.14476",
    ),
    "gspo-token": vary(
        _PLAIN,
        ratio=use("sequence-token"),
        surrogate=use("clip", epsilon_low=3e-4, epsilon_high=4e-4),
    ).named(
        "GSPO-token",
        "The value of gspo; with one advantage per response and the response mean also its "
        "gradient. verl's and SkyRL's gspo are this one, log s capped at 10.",
        paper="2507.18071",
        aliases=("gspo_token",),
    ),
    "luspo": vary(
        _PLAIN,
        ratio=use("sequence"),
        surrogate=use("clip", epsilon_low=2e-3, epsilon_high=2.5e-3),
        aggregate=use("token-sum"),
    ).named(
        "Length-Unbiased Sequence Policy Optimization",
        "gspo with each response weighed by its length. Liger's Triton kernel weighs with "
        "the length twice.",
        paper="2602.05261",
    ),
    "gmpo": vary(_PLAIN, surrogate=use("gmpo", epsilon_low=0.4, epsilon_high=0.4)).named(
        "Geometric-Mean Policy Optimization",
        "ε is in log space: the ratio's band is [e^−0.4, e^0.4]. verl averages over the rows "
        "of a micro-batch whatever the aggregation.",
        paper="2507.20673",
        aliases=("geo_mean",),
    ),
    "sapo": vary(_PLAIN, surrogate=use("sapo", tau_pos=1.0, tau_neg=1.05)).named(
        "Soft Adaptive Policy Optimization",
        "The value on-policy is 2A/τ, not A. verl forces the response mean, SkyRL averages "
        "as configured (over tokens by default).",
        paper="2511.20347",
    ),
    "vespo": vary(
        _PLAIN, ratio=use("product"), surrogate=use("vespo"), aggregate=_TOKEN_MEAN
    ).named(
        "Variational Sequence-level Soft Policy Optimization",
        "The ratio is that of the whole response, not a geometric mean. TRL clamps it, and "
        "takes the rollout engine's mismatch into it.",
        paper="2602.10693",
    ),
    "dppo-tv": vary(
        _PLAIN,
        surrogate=use("dppo-tv", divergence_low=0.15, divergence_high=0.15),
        aggregate=_TOKEN_MEAN,
    ).named(
        "Divergence PPO, binary total variation",
        "The paper's behaviour policy is the one that sampled, and the authors' code takes "
        "the engine's log-probs: --ratio rollout --surrogate dppo-tv-rollout. Here it is the old "
        "policy, as in their …_recompute masks. δ is 0.2 in verl's recipe and SkyRL; verl's "
        "value contains log π_θ and caps the ratio.",
        paper="2602.04879",
        aliases=("dppo",),
    ),
    "dppo-kl": vary(
        _PLAIN,
        surrogate=use("dppo-kl", divergence_low=0.05, divergence_high=0.05),
        aggregate=_TOKEN_MEAN,
    ).named(
        "Divergence PPO, binary KL",
        "As dppo-tv with a KL of the token against all others; against the engine, as the "
        "authors' code, --ratio rollout --surrogate dppo-kl-rollout. SkyRL's documentation has δ = "
        "0.05.",
        paper="2602.04879",
    ),
    "dro": vary(
        _PLAIN,
        advantage=use("group-mean"),
        surrogate=use("dro", dro_beta=0.05),
        aggregate=_TOKEN_MEAN,
    ).named(
        "Direct Reward Optimization",
        "The paper learns a value function and squares the response's log ratio; as a GRPO "
        "loss (Kimi k1.5, verl, Tinker) it is per token. verl has no default β, ROLL's is 0.1.",
        paper="2405.19107",
    ),
    "topr": vary(
        _PLAIN,
        advantage=use("group-mean"),
        ratio=use("product"),
        surrogate=use("topr"),
        aggregate=use("token-sum"),
    ).named(
        "Tapered Off-Policy REINFORCE",
        "The sign of the advantage (the paper's reward minus a baseline) separates good from bad. "
        "ROLL tests the raw score and caps the ratio token by token (--ratio token).",
        paper="2503.14286",
    ),
    "kl-cov": vary(
        _PLAIN, surrogate=use("kl-cov", kl_cov_ratio=0.0002, ppo_kl_coef=1.0), aggregate=_TOKEN_MEAN
    ).named(
        "KL-Cov",
        "Nothing is clipped. The share is the authors' for 32B, 0.0002; for 7B they have "
        "0.002. The tokens are ranked within a record here, within a "
        "micro-batch in verl and SkyRL; their shares differ a thousandfold.",
        paper="2505.22617",
        aliases=("kl_cov",),
    ),
    "clip-cov": vary(_PLAIN, surrogate=use("clip-cov"), aggregate=_TOKEN_MEAN).named(
        "Clip-Cov",
        "Takes tokens out at random: give -p clip_cov_seed=N. verl and SkyRL draw unseeded, "
        "and SkyRL's covariances are of scaled advantages.",
        paper="2505.22617",
        aliases=("clip_cov",),
    ),
    "two-sided": vary(
        _PLAIN,
        surrogate=use("clip", epsilon_low=0.2, epsilon_high=0.2, delta=4.0),
        kl=use("k3", beta=0.001),
        aggregate=_TOKEN_MEAN,
    ).named(
        "Two-sided clip (INTELLECT-2)",
        "δ bounds the ratio where A < 0. TRL's and Liger's delta tightens A > 0 instead "
        "where it is below 1 + ε_high, and does nothing in their cispo.",
        paper="2505.07291",
        aliases=("two_sided",),
    ),
    "dual-clip": vary(
        _PLAIN,
        surrogate=use("clip", epsilon_low=0.2, epsilon_high=0.2, dual_clip=3.0),
        aggregate=_TOKEN_MEAN,
    ).named(
        "Dual-clip PPO on group advantages",
        "Always on in verl (c = 3), an option elsewhere; ROLL's c is 1 + 2ε = 1.4.",
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
        "DAPO weighed by the future log ratios, as the authors' code and script for 32B have "
        "it: a response with more than one token of A < 0 and ρ > δ is dropped. ms-swift drops "
        "none, its safety threshold is 4, and δ is off by default there.",
        paper="2603.19835",
    ),
    "real": vary(
        _PLAIN,
        advantage=use("group-mean"),
        ratio=use("sequence"),
        surrogate=use("real", real_tau=0.5),
        aggregate=use("prompt-mean"),
    ).named(
        "Rewards as Labels",
        "Only the sign of the advantage counts. ms-swift, too, divides by all groups, be "
        "they all good or all bad.",
        paper="2602.05630",
    ),
    "ce-gppo": vary(_TOKEN_MEANS, surrogate=use("ce-gppo", gppo_beta1=0.5, gppo_beta2=1.0)).named(
        "CE-GPPO (clipped tokens keep a part of their gradient)",
        "β₁ is 0.5 in the authors' 1.5B script and 0.75 in the 7B one, whose dual clip "
        "(-p dual_clip=10) the equation does not have. GPPO of Klear-Reasoner is "
        "-p gppo_beta1=1 -p gppo_beta2=1.",
        paper="2509.20712",
        aliases=("ce_gppo", "gppo"),
    ),
    "dcpo": vary(
        _TOKEN_MEANS,
        advantage=use("group-std", std_ddof=1, std_eps=0.0, std_min=0.0),
        surrogate=use("dcpo"),
        aggregate=use("response-sum"),
    ).named(
        "Dynamic Clipping Policy Optimization, a prompt's first step",
        "From a prompt's second step on, its smooth advantage needs what records have no "
        "column for: the mean, std and number of the prompt's earlier rewards. The released code "
        "computes token-mean under the name only-token-mean, and -p dual_clip=10.",
        paper="2509.02333",
    ),
    "bapo": vary(_TOKEN_MEANS, surrogate=use("bapo")).named(
        "Balanced Policy Optimization with adaptive clipping",
        "A record is balanced by itself. The order (lower bound first) and the steps are the "
        "released code's, the ranges its README's 'as used in the paper'; its configuration ends "
        "at 0.8 and 2.0, and has -p dual_clip=3 and --ratio token -p log_ratio_clamp=20.",
        paper="2510.18927",
    ),
    "minirl": vary(
        _TOKEN_MEANS,
        advantage=use("group-mean"),
        surrogate=use("minirl"),
        aggregate=use("token-sum"),
    ).named(
        "MiniRL",
        "Needs the engine's log-probs; the mask goes by the trainer's old policy. The "
        "experiments truncate the engine's part of the weight, which the equation does not. No "
        "length normalisation: the paper finds that it harms.",
        paper="2512.01374",
    ),
}
