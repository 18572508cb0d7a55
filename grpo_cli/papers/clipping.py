"""Papers that clip otherwise: bounds that follow the data, and what is done beyond them."""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.objective.row import use, vary
from grpo_cli.papers.basics import GRPO

_PLAIN = replace(GRPO, kl=use("none"), aggregate=use("token-mean"))

ROWS = {
    "ce-gppo": vary(_PLAIN, surrogate=use("ce-gppo", gppo_beta1=0.5, gppo_beta2=1.0)).named(
        "CE-GPPO (clipped tokens keep a part of their gradient)",
        "β₁ is 0.5 in the authors' 1.5B script and 0.75 in the 7B one, whose dual clip "
        "(-p dual_clip=10) the equation does not have. GPPO of Klear-Reasoner is "
        "-p gppo_beta1=1 -p gppo_beta2=1.",
        paper="2509.20712",
        aliases=("ce_gppo", "gppo"),
    ),
    "dcpo": vary(
        _PLAIN,
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
    "bapo": vary(_PLAIN, surrogate=use("bapo")).named(
        "Balanced Policy Optimization with adaptive clipping",
        "A record is balanced by itself. The order (lower bound first) and the steps are the "
        "released code's, the ranges its README's 'as used in the paper'; its configuration ends "
        "at 0.8 and 2.0, and has -p dual_clip=3 and --ratio token -p log_ratio_clamp=20.",
        paper="2510.18927",
    ),
    "minirl": vary(
        _PLAIN, advantage=use("group-mean"), surrogate=use("minirl"), aggregate=use("token-sum")
    ).named(
        "MiniRL",
        "Needs the engine's log-probs; the mask goes by the trainer's old policy. The "
        "experiments truncate the engine's part of the weight, which the equation does not. No "
        "length normalisation: the paper finds that it harms.",
        paper="2512.01374",
    ),
}
