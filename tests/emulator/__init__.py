"""Tests of the emulated devices and the emulated NCCL themselves."""
