"""Starts a job on emulated devices."""
