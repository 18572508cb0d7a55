"""``grpo verify``."""
