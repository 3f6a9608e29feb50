"""Helpers of the tests: run a process, run a rehearsal."""
