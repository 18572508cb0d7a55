"""What ``grpo show --html`` and ``grpo report --html`` draw in a browser."""
