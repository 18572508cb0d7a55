"""Rules on single columns of numbers."""
