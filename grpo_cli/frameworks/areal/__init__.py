"""AReaL."""
