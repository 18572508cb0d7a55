"""A room per command: its flags, its logic, its view."""
