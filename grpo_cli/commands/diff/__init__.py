"""``grpo diff``."""
