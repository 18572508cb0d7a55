"""Parquet, Arrow, npz and safetensors."""
