"""Rows of the table of variants, as papers write them."""

from grpo_cli.papers import advantage, basics, clipping, correction, selection, surrogate

ROWS = {
    **basics.ROWS,
    **surrogate.ROWS,
    **clipping.ROWS,
    **advantage.ROWS,
    **selection.ROWS,
    **correction.ROWS,
}
