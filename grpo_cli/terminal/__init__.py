"""Output for people: tables, numbers, colours, progress, messages."""
