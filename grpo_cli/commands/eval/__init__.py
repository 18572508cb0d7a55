"""``grpo eval``."""
