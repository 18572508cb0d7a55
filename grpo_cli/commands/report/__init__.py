"""What ``grpo report`` and ``grpo trend --html`` write."""
