"""Servers and libraries that call NCCL themselves, by their own modules, in rehearsal."""
