"""``grpo vectors``."""
