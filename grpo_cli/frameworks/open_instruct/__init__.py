"""open-instruct."""
