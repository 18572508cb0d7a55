"""prime-rl's losses, all of them against the engine that sampled."""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.objective.row import Row, use

GRPO = Row(
    title="prime-rl's grpo: DPPO's mask and Kimi's squared log ratio",
    paper="2602.04879",
    aliases=("prime-rl/default",),
    advantage=use("group-mean"),
    ratio=use("rollout"),
    surrogate=use("dppo-tv-rollout", divergence_low=0.2, divergence_high=0.2),
    kl=use("square-rollout", beta=1e-3),
    correction=use("none"),
    aggregate=use("token-mean"),
    reads=frozenset({"divergence_low", "divergence_high", "ipo_threshold", "beta"}),
    checked="executed",
    version="559b447 (2026-08-21)",
    note="One ratio π_θ/π_rollout, unclipped, and dropped where the probability moved too far. Its "
    "kl is (log w)² without ½, on dropped tokens too, and needs no reference (arXiv 2602.02276). "
    "docs/algorithms.md still shows min(w, δ)·A. Its length_penalty is --advantage "
    "prime-rl/length-penalty, for output tokens; input tokens and turns have no column.",
)

ROWS = {
    "prime-rl/grpo": GRPO,
    "prime-rl/ipo": replace(
        GRPO,
        title="prime-rl's ipo: a symmetric trust region",
        paper="",
        aliases=(),
        surrogate=use("prime-rl/ipo", ipo_threshold=0.1),
        note="Drops |π_θ − π_rollout| > 0.1 whatever the sign of A. Not Identity Preference "
        "Optimization.",
    ),
    "prime-rl/max_rl": replace(
        GRPO,
        title="prime-rl's max_rl",
        checked="golden",
        paper="2602.02710",
        aliases=(),
        advantage=use("max-rl"),
        note="(r − r̄)/r̄, and 0 where r̄ <= 0.",
    ),
    "prime-rl/ref_kl": replace(
        GRPO,
        title="prime-rl's on-policy distillation (opd, opsd)",
        paper="",
        aliases=("prime-rl/opd",),
        advantage=use("prime-rl/ref_kl"),
        surrogate=use("prime-rl/ref_kl", divergence_low=0.2),
        reads=frozenset(),
        note="log_probs_ref is the teacher's. Rewards and advantages play no part; the constants "
        "are fixed in prime-rl.",
    ),
}
