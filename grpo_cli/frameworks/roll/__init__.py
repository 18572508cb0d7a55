"""ROLL."""
