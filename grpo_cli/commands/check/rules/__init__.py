"""The functions of the rules."""
