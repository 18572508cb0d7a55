"""``grpo formats``."""
