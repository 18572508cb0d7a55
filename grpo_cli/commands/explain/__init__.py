"""``grpo explain``."""
