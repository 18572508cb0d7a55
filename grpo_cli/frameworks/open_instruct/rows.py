"""open-instruct's two losses with its ρ correction, which is on by default."""

from __future__ import annotations

from grpo_cli.objective.row import Row, use, vary, words

_READS = words("epsilon_low epsilon_high beta is_low is_high rho_mask_low rho_mask_high")
"""Of GRPOExperimentConfig (open_instruct/grpo_utils.py); the clamp of the KL is a constant."""

DAPO = Row(
    title="open-instruct's grpo (loss_fn dapo)",
    paper="2503.14476",
    aliases=("open-instruct/dapo",),
    advantage=use("group-mean"),
    ratio=use("token"),
    surrogate=use("clip", epsilon_low=0.2, epsilon_high=0.272),
    kl=use("k3", beta=0.05, kl_input_clamp=40.0),
    correction=use("open-instruct/rho"),
    aggregate=use("token-mean"),
    reads=_READS,
    checked="executed",
    version="e6c3044 (2026-08-20)",
    note="kl_estimator 2, the default, is k3; for 3, use --kl k1 -p kl_weight=ratio. For "
    "advantage_normalization_type standard, use --advantage group-std with ddof 0 and eps 1e-8. "
    "With one mini-batch the old log-probs come from the same forward pass, so every ratio is 1. "
    "For a numeric loss_denominator, use --aggregate open-instruct/constant.",
)

ROWS = {
    "open-instruct/grpo": DAPO,
    "open-instruct/cispo": vary(
        DAPO,
        surrogate=use("cispo", epsilon_low=1.0, epsilon_high=0.272),
        reads=_READS - {"epsilon_low"},
    ).named(
        "open-instruct's cispo",
        "The weight is capped at 1.272 and has no lower bound; slime and NeMo-RL have both bounds.",
        paper="2506.13585",
    ),
}
