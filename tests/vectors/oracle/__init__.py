"""The expected values of the vectors: the objective in plain loops over 50-digit numbers.

Written from the papers' formulas; it imports nothing of grpo_cli, which is tested against it.
"""
