"""Decoded objects → checked records → batches."""
