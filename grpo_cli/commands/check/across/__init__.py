"""Rules on what records have in common."""
