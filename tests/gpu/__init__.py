"""Tests on real devices: skipped where torch sees none. Several ranks need as many devices."""
