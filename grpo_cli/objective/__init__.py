"""The mathematics of the GRPO family, free of frameworks."""
