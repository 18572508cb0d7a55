"""Papers that correct for the engine that sampled."""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.objective.row import use, vary
from grpo_cli.papers.basics import GRPO

_PLAIN = replace(GRPO, kl=use("none"), aggregate=use("token-mean"))

ROWS = {
    "tis": vary(_PLAIN, correction=use("token-truncate", is_low=None, is_high=2.0)).named(
        "GRPO with Truncated Importance Sampling",
        "Yao et al., 2025, a blog post. The weight multiplies the clipped surrogate, outside "
        "the clip. Bounds: slime and open-instruct [0, 2], OpenRLHF [0.5, 5], TRL's cap 3 on the "
        "whole response by default.",
        paper="",
    ),
    "icepop": vary(_PLAIN, correction=use("token-mask", is_low=0.5, is_high=5.0)).named(
        "GRPO with IcePop's token mask",
        "A masked token stays in the denominator; SkyRL and AReaL offer it as a rejection, "
        "and ROLL's defaults are [0.8, 1.2].",
        paper="2510.18855",
        aliases=("ice-pop",),
    ),
    "deepseek-v3.2": vary(
        GRPO,
        advantage=use("group-mean"),
        kl=use("k3", beta=0.01, kl_weight="ratio"),
        correction=use("off-policy-mask", off_policy_mask_threshold=1e-4),
    ).named(
        "DeepSeek-V3.2's GRPO (unbiased KL, off-policy sequence mask)",
        "The paper states neither β nor the threshold; 1e-4 is slime's. Its π_old in the "
        "mask is the engine's (log_probs_rollout); --correction off-policy-mask-old compares with "
        "the trainer's, as slime does.",
        paper="2512.02556",
        aliases=("deepseek_v3.2",),
    ),
}
