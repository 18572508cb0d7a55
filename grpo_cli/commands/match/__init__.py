"""``grpo match``."""
