"""``grpo check``."""
