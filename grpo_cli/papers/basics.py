"""The objectives as their papers write them."""

from __future__ import annotations

from grpo_cli.objective.row import Row, use, vary

GRPO = Row(
    title="Group Relative Policy Optimization",
    paper="2402.03300",
    advantage=use("group-std", std_ddof=1, std_eps=1e-8, std_min=0.0),
    ratio=use("token"),
    surrogate=use("clip", epsilon_low=0.2, epsilon_high=0.2),
    kl=use("k3", beta=0.04),
    correction=use("none"),
    aggregate=use("response-mean"),
    note="The paper does not define the std (ddof, eps); TRL, verl and OpenRLHF each use "
    "another one. In most frameworks the default 'GRPO' now has β = 0 and averages over "
    "all tokens.",
)
PLAIN = vary(GRPO, kl=use("none"))
TOKEN_MEANS = vary(PLAIN, aggregate=use("token-mean"))

ROWS = {
    "grpo": GRPO,
    "dr": vary(PLAIN, advantage=use("group-mean"), aggregate=use("token-sum")).named(
        "Dr. GRPO (GRPO Done Right)",
        "The paper sums over tokens. Its code and TRL's dr_grpo divide by a constant length "
        "(token-sum-norm). TRL's loss_type dr_grpo still divides by the std unless "
        "scale_rewards is off.",
        paper="2503.20783",
        aliases=("dr_grpo", "dr-grpo"),
    ),
    "grpo-unbiased-kl": vary(GRPO, kl=use("k3", beta=0.01, kl_weight="ratio")).named(
        "GRPO with the importance-weighted (unbiased) KL",
        "The KL weight is π_θ/π_old and has a gradient, as in DeepSeek-V3.2, TRL and slime. "
        "NeMo-RL's weight is π_θ/π_rollout.",
        paper="2512.02556",
    ),
    "grpo-k1": vary(
        GRPO,
        advantage=use("group-std", std_ddof=0, std_eps=0.0, std_min=1e-8),
        kl=use("k1", beta=0.04),
    ).named(
        "GRPO with the k1 KL and the population std",
        "Often taught as 'Dr. GRPO', although it divides by the std. As a loss, k1 has zero "
        "expected gradient on-policy.",
        paper="2402.03300",
    ),
    "dapo": vary(TOKEN_MEANS, surrogate=use("clip", epsilon_low=0.2, epsilon_high=0.28)).named(
        "Decoupled Clip and Dynamic Sampling Policy Optimization",
        "The paper's equation averages over the tokens of one group (prompt-mean). "
        "Frameworks, and this variant, average over the tokens of the whole batch.",
        paper="2503.14476",
    ),
    "bnpo": vary(GRPO, aggregate=use("token-mean")).named(
        "GRPO with the token mean over the batch (TRL's bnpo)",
        "TRL's name for the token mean over a micro-batch; unrelated to the "
        "Beta-normalisation paper with the same acronym.",
        paper="",
    ),
    "gspo": vary(
        PLAIN, ratio=use("sequence"), surrogate=use("clip", epsilon_low=3e-4, epsilon_high=4e-4)
    ).named(
        "Group Sequence Policy Optimization",
        "The sequence ratio is the geometric mean of the token ratios; in RLOO it is their "
        "product. AReaL weights each sequence by its length.",
        paper="2507.18071",
    ),
    "cispo": vary(TOKEN_MEANS, surrogate=use("cispo", epsilon_low=1.0, epsilon_high=4.0)).named(
        "Clipped IS-weight Policy Optimization",
        "The paper gives no bounds; [0, 5] are ScaleRL's. TRL caps the ratio at ε_high, not "
        "1 + ε_high. verl's default bounds are [0.8, 1.2].",
        paper="2506.13585",
    ),
}
