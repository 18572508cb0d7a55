"""Papers that learn from some of the responses only, or weigh good and bad ones apart."""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.objective.row import use
from grpo_cli.papers.basics import GRPO

_PLAIN = replace(GRPO, kl=use("none"), aggregate=use("token-mean"))
_SIGNED = (
    "The paper's objective is REINFORCE without a baseline; the clip and the token mean are its "
    "released code's, and the gradient is the same at ratio 1. "
)
_SUBSET = "The code takes the other responses out of the batch, and so out of the denominator."

ROWS = {
    "psr": replace(
        _PLAIN,
        title="Positive Sample Reinforcement",
        paper="2506.01347",
        advantage=use("signed", positive_weight=1.0, negative_weight=0.0),
        note=_SIGNED + _SUBSET,
    ),
    "nsr": replace(
        _PLAIN,
        title="Negative Sample Reinforcement",
        paper="2506.01347",
        advantage=use("signed", positive_weight=0.0, negative_weight=1.0),
        note=_SIGNED + _SUBSET,
    ),
    "w-reinforce": replace(
        _PLAIN,
        title="Weighted-REINFORCE (NSR with a little PSR)",
        paper="2506.01347",
        aliases=("w_reinforce", "weighted-reinforce"),
        advantage=use("signed", positive_weight=0.1, negative_weight=1.0),
        note=_SIGNED + "λ is -p positive_weight.",
    ),
    "gfpo": replace(
        _PLAIN,
        title="Group Filtered Policy Optimization, shortest responses",
        paper="2508.09726",
        advantage=use("shortest", gfpo_keep=8),
        until="trl 1.7.1",
        note="The others have advantage 0 and stay in the denominator, as in the paper's equation, "
        "which was computed in 50 digits; it is of one prompt (--aggregate prompt-mean). No code "
        "of the authors' is public. TRL's GFPOTrainer (until 1.7.1) took the others out, with ddof "
        "1 and eps 1e-4: its filter was run. A KL and an entropy term may be added (--kl k3 "
        "--beta …); adaptive difficulty needs the prompts before, which no record has.",
    ),
    "gfpo-efficiency": replace(
        _PLAIN,
        title="Group Filtered Policy Optimization, most reward per token",
        paper="2508.09726",
        aliases=("gfpo_efficiency",),
        advantage=use("token-efficient", gfpo_keep=8),
        note="As gfpo, by reward over length.",
    ),
}
