"""``grpo split``."""
