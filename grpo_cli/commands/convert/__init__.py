"""``grpo convert``."""
