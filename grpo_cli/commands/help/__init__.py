"""``grpo help``."""
