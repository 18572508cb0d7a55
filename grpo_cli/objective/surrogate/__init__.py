"""Stage 3, surrogate: how is the ratio clipped? Lists show the choices in the order of imports."""

from grpo_cli.objective.surrogate import clip, gates, joint, rollout

__all__ = ["clip", "gates", "joint", "rollout"]
