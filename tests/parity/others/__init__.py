"""Frameworks and papers' code, run from clones of their sources.

Each module names, for what its framework computes, the row, stages and hyperparameters of ours that
should give the same. ``write`` runs them and leaves tests/golden/others.json and authors.json.
Where a framework reduces in code that needs its engine (slime, open-instruct), the reduction is
written out here.
"""
