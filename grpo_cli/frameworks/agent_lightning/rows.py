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
        "Each rollout counts once in the group, and all rollouts have equal weight in the loss. "
        "The sum is divided by the number of rows, so a rollout split into more rows makes the "
        "step smaller. To divide by the rollouts, use --aggregate trajectory-mean.",
        paper="",
        aliases=("agent-lightning/default",),
    ),
    "agent-lightning/transition": vary(VANILLA, checked="read", version=_VERSION).named(
        "agent-lightning without rollout-level advantages and loss (its default before 1.0)",
        "This is verl's vanilla. Every turn is a sample of the group, so long rollouts have more "
        "weight in the group's mean and std and in the loss.",
        paper="",
    ),
}
