"""rLLM: its own advantages, and verl's loss with the defaults of verl's configuration."""

from __future__ import annotations

from grpo_cli.frameworks.verl.rows import VANILLA
from grpo_cli.objective.row import use, vary

ROWS = {
    "rllm/grpo": vary(VANILLA, advantage=use("rllm/grpo"), version="9beb6e0 (2026-08-15)").named(
        "rLLM's GRPO, broadcast from trajectories to steps",
        "σ has ddof 0; in verl's grpo, in SkyRL and in verl's agent loops it has ddof 1. The loss "
        "is a mean over rows, one per step, so long trajectories have more weight.",
        paper="",
    ),
    "rllm/per_step": vary(
        VANILLA, advantage=use("rllm/per_step"), version="960d573 (2025-12-11)", until="rllm 0.2.1"
    ).named(
        "rLLM's GRPO by step (stepwise_advantage.mode per_step)",
        "Needs a reward per step. The k-th steps of a group are compared with each other, "
        "although they started in different states. A step that no other trajectory reaches keeps "
        "its raw reward. Later releases broadcast the trajectory's advantage (rllm/grpo).",
        paper="",
    ),
}
