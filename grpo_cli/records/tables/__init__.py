"""Parquet, Arrow and npz."""
