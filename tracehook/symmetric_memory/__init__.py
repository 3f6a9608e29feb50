"""Symmetric memory: pools, windows, and the agreement of ranks on them. `public` is what programs call."""
