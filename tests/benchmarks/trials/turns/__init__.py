"""Batches of agents: clean ones as frameworks write them, and faults of turns planted in them."""
