"""``grpo show``."""
