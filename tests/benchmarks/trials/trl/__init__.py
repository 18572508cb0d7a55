"""TRL's GRPO loss in numpy, written from its formulas and independent of the product."""
