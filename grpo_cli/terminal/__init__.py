"""What a person sees: tables, numbers, colours, progress, messages."""
