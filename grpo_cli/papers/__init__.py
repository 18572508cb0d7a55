"""Rows of the table of variants, as papers write them."""

from grpo_cli.papers import advantage, basics, correction, surrogate

ROWS = {**basics.ROWS, **surrogate.ROWS, **advantage.ROWS, **correction.ROWS}
