"""``grpo trend``."""
