"""The objectives as their papers write them."""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.objective.row import Row, use

_CLIP = use("clip", epsilon_low=0.2, epsilon_high=0.2)
_NO_KL = use("none")

GRPO = Row(
    title="Group Relative Policy Optimization",
    paper="2402.03300",
    advantage=use("group-std", std_ddof=1, std_eps=1e-8, std_min=0.0),
    ratio=use("token"),
    surrogate=_CLIP,
    kl=use("k3", beta=0.04),
    correction=use("none"),
    aggregate=use("response-mean"),
    note="The paper leaves open which std (ddof, eps); TRL, verl and OpenRLHF each choose another. "
    "Most frameworks' default 'GRPO' now has β = 0 and averages over all tokens.",
)

ROWS = {
    "grpo": GRPO,
    "dr": replace(
        GRPO,
        title="Dr. GRPO (GRPO Done Right)",
        paper="2503.20783",
        aliases=("dr_grpo", "dr-grpo"),
        advantage=use("group-mean"),
        kl=_NO_KL,
        aggregate=use("token-sum"),
        note="The paper sums over tokens; its code and TRL's dr_grpo divide by a constant length "
        "(token-sum-norm), and TRL's loss_type alone keeps the std.",
    ),
    "grpo-unbiased-kl": replace(
        GRPO,
        title="GRPO with the importance-weighted (unbiased) KL",
        paper="2512.02556",
        kl=use("k3", beta=0.01, kl_weight="ratio"),
        note="The weight is π_θ/π_old and is differentiated, as in DeepSeek-V3.2, TRL and slime; "
        "NeMo-RL weighs with π_θ/π_rollout.",
    ),
    "grpo-k1": replace(
        GRPO,
        title="GRPO with the k1 KL and the population std",
        paper="2402.03300",
        advantage=use("group-std", std_ddof=0, std_eps=0.0, std_min=1e-8),
        kl=use("k1", beta=0.04),
        note="Widely taught as 'Dr. GRPO' although it divides by the std. As a loss, k1 has zero "
        "expected gradient on-policy.",
    ),
    "dapo": replace(
        GRPO,
        title="Decoupled Clip and Dynamic Sampling Policy Optimization",
        paper="2503.14476",
        surrogate=use("clip", epsilon_low=0.2, epsilon_high=0.28),
        kl=_NO_KL,
        aggregate=use("token-mean"),
        note="The paper's sum averages over the tokens of one group (prompt-mean); frameworks "
        "average over the tokens of the whole batch, as this row does.",
    ),
    "bnpo": replace(
        GRPO,
        title="GRPO with the token mean over the batch (TRL's bnpo)",
        paper="",
        aggregate=use("token-mean"),
        note="TRL's name for the local token mean; not the Beta-normalisation paper of the same "
        "acronym.",
    ),
    "gspo": replace(
        GRPO,
        title="Group Sequence Policy Optimization",
        paper="2507.18071",
        ratio=use("sequence"),
        surrogate=use("clip", epsilon_low=3e-4, epsilon_high=4e-4),
        kl=_NO_KL,
        note="'Sequence' is the geometric mean of the token ratios, RLOO's the product. "
        "AReaL weighs each sequence by its length.",
    ),
    "cispo": replace(
        GRPO,
        title="Clipped IS-weight Policy Optimization",
        paper="2506.13585",
        surrogate=use("cispo", epsilon_low=1.0, epsilon_high=4.0),
        kl=_NO_KL,
        aggregate=use("token-mean"),
        note="The paper gives no ε_high; [0, 5] is ScaleRL's. TRL caps at ε_high itself, verl's "
        "window is [0.8, 1.2] by default.",
    ),
}
