"""``grpo variants``."""
