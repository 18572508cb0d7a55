"""Rules on rewards, advantages and groups."""
