"""Rules on which tokens count."""
