"""What is solved for: ε."""
