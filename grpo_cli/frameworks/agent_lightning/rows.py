"""agent-lightning 1.0.0: verl's loss on rows that may be turns of one rollout."""

from __future__ import annotations

from grpo_cli.frameworks.verl.rows import VANILLA
from grpo_cli.objective.row import use, vary

_VERSION = "c632d8d (2026-08-22)"

ROWS = {
    "agent-lightning/per_rollout_mean": vary(
        VANILLA,
        advantage=use("verl/grpo_multi_trajectories"),
        aggregate=use("agent-lightning/per_rollout_mean"),
        kl_aggregate=VANILLA.aggregate,
        entropy_aggregate=VANILLA.aggregate,
        version=_VERSION,
    ).named(
        "agent-lightning's default: advantages and loss by rollout",
        "Each rollout counts once in the group and weighs as much as any other, but the sum is "
        "divided by the rows: the more turns are rows, the smaller the step. --aggregate "
        "trajectory-mean divides by the rollouts.",
        paper="",
        aliases=("agent-lightning/default",),
    ),
    "agent-lightning/transition": vary(VANILLA, checked="read", version=_VERSION).named(
        "agent-lightning without rollout-level advantages and loss (its default before 1.0)",
        "verl's vanilla: every turn is a sample of the group, so that long rollouts move its mean "
        "and its std, and weigh more in the loss.",
        paper="",
    ),
}
