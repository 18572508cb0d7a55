"""Clean batches, as a healthy trainer would dump them; and the knobs that a fault turns."""
