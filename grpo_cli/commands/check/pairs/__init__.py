"""Rules on two columns of log-probs of the same tokens."""
