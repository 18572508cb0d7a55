"""What papers' authors released, executed beside the papers' rows."""
