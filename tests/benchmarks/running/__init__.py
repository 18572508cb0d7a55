"""Simulated runs with known faults, and how ``grpo trend`` is judged on them."""
