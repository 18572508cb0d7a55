"""``grpo compare``."""
