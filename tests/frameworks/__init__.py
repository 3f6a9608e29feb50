"""Training with real frameworks, in rehearsal."""
