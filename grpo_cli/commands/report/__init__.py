"""``grpo report``."""
