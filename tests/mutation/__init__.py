"""Mutants of the package: where it can be broken, which tests run it, whether they notice."""
