"""Tinker's losses, as its documentation writes them."""

from __future__ import annotations

from grpo_cli.objective.row import Row, use, vary

IMPORTANCE_SAMPLING = Row(
    title="Tinker's importance_sampling",
    paper="",
    advantage=use("tinker/group-mean"),
    ratio=use("rollout"),
    surrogate=use("unclipped"),
    kl=use("none"),
    correction=use("none"),
    aggregate=use("sum"),
    reads=frozenset({"epsilon_low", "epsilon_high", "dro_beta"}),
    checked="read",
    version="cookbook 9dfcc3a (2026-08-19), docs/losses.mdx a2b1b82",
    note="The ratio uses the sampler's log-probs, and the loss is a plain sum over tokens: scale "
    "the advantages instead. For the cookbook's kl_penalty_coef, use --kl tinker/centred --beta. "
    "stable_reinforce, the default since 0.6, has no row: its formula is not published, nor are "
    "the numbers it needs, which the sampler records.",
)

ROWS = {
    "tinker/importance_sampling": IMPORTANCE_SAMPLING,
    "tinker/ppo": vary(
        IMPORTANCE_SAMPLING, surrogate=use("clip", epsilon_low=0.2, epsilon_high=0.2)
    ).named(
        "Tinker's ppo",
        "Tinker's options are the bounds themselves, clip_low_threshold 0.8 and "
        "clip_high_threshold 1.2, not their distance from 1.",
        paper="1707.06347",
    ),
    "tinker/gspo": vary(
        IMPORTANCE_SAMPLING,
        version="tinker 0.38.0, docs/losses/gspo",
        ratio=use("rollout-sequence-token"),
        surrogate=use("clip", epsilon_low=0.2, epsilon_high=0.2),
    ).named(
        "Tinker's gspo (GSPO-token)",
        "The mean is over the tokens of sequence_ratio_mask; here over all unmasked tokens. "
        "Tinker's options are the bounds themselves, clip_low_threshold and clip_high_threshold. "
        "0.8 and 1.2 are ppo's; the paper's are 1 − 3e-4 and 1 + 4e-4.",
        paper="2507.18071",
    ),
    "tinker/cispo": vary(
        IMPORTANCE_SAMPLING, surrogate=use("cispo", epsilon_low=1.0, epsilon_high=3.0)
    ).named(
        "Tinker's cispo",
        "The bounds are clip_low_threshold 0 and clip_high_threshold 4 by default; an older "
        "example in Tinker's documentation uses 0.8 and 1.2.",
        paper="2506.13585",
    ),
    "tinker/dro": vary(IMPORTANCE_SAMPLING, surrogate=use("dro-rollout", dro_beta=0.05)).named(
        "Tinker's dro",
        "β has no documented default; 0.05 is from Tinker's example. There is no ratio. Prompt "
        "tokens are assumed to be masked.",
        paper="2405.19107",
    ),
}
