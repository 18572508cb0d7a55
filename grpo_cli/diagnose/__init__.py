"""Questions about a dump: which convention, what a split does, why the loss is what it is."""
