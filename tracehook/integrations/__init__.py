"""Puts tracehook's memory under the symmetric-memory functions of frameworks (docs/integrations.md)."""
