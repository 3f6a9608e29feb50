"""Tests of one room at a time, on scripted communicators and stores."""
