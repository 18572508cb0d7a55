"""Text → decoded objects, many at once."""
