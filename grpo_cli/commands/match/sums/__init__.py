"""What is added up over the data."""
