"""The version: here and nowhere else."""

VERSION = "0.2.0"
