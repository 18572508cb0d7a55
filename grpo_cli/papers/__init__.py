"""Rows of the table of variants, as papers write them."""
