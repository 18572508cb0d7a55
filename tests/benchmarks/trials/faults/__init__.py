"""Faults that are planted into otherwise clean batches, each with graded strength."""
