"""Logs as Parquet: what `tracehook export` writes, and how far it came."""
