"""Exact sums, sums by group, and running sums."""
