"""Breakdowns → the rows that are printed."""
