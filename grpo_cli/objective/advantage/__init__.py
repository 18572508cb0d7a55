"""Stage 1, advantage: how much better was this response? Lists have the order of imports."""

from grpo_cli.objective.advantage import batch, group, selected, tokens, turns

__all__ = ["batch", "group", "selected", "tokens", "turns"]
