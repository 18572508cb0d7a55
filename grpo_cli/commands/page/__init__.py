"""The pages of ``grpo show --html`` and ``grpo report``."""
