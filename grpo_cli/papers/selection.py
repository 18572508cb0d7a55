"""Papers that learn from some of the responses only, or weigh good and bad ones differently."""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.objective.row import use, vary
from grpo_cli.papers.basics import GRPO

_PLAIN = replace(GRPO, kl=use("none"), aggregate=use("token-mean"))
_SIGNED = (
    "The paper's objective is REINFORCE without a baseline; the clip and the token mean are its "
    "released code's, and the gradient is the same at ratio 1. "
)
_SUBSET = "The code takes the other responses out of the batch, and so out of the denominator."

ROWS = {
    "psr": vary(_PLAIN, advantage=use("signed", positive_weight=1.0, negative_weight=0.0)).named(
        "Positive Sample Reinforcement", _SIGNED + _SUBSET, paper="2506.01347"
    ),
    "nsr": vary(_PLAIN, advantage=use("signed", positive_weight=0.0, negative_weight=1.0)).named(
        "Negative Sample Reinforcement", _SIGNED + _SUBSET, paper="2506.01347"
    ),
    "w-reinforce": vary(
        _PLAIN, advantage=use("signed", positive_weight=0.1, negative_weight=1.0)
    ).named(
        "Weighted-REINFORCE (NSR with a little PSR)",
        _SIGNED + "λ is -p positive_weight.",
        paper="2506.01347",
        aliases=("w_reinforce", "weighted-reinforce"),
    ),
    "gfpo": vary(_PLAIN, advantage=use("shortest", gfpo_keep=8), until="trl 1.7.1").named(
        "Group Filtered Policy Optimization, shortest responses",
        "The others have advantage 0 and stay in the denominator, as in the paper's equation, "
        "which was computed in 50 digits; it is of one prompt (--aggregate prompt-mean). No code "
        "of the authors' is public. TRL's GFPOTrainer (until 1.7.1) took the others out, with ddof "
        "1 and eps 1e-4: its filter was run. A KL and an entropy term may be added (--kl k3 "
        "--beta …); adaptive difficulty needs the prompts before, which no record has.",
        paper="2508.09726",
    ),
    "gfpo-efficiency": vary(_PLAIN, advantage=use("token-efficient", gfpo_keep=8)).named(
        "Group Filtered Policy Optimization, most reward per token",
        "As gfpo, by reward over length.",
        paper="2508.09726",
        aliases=("gfpo_efficiency",),
    ),
}
