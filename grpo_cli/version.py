"""The version: here and nowhere else."""

VERSION = "0.3.0"
