"""Tests of whole processes: activation, settings, commands, fork, the end of the interpreter."""
